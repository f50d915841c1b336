//! The beginning of services: all of them when the server starts, which answers meanwhile that they are starting, and later an
//! idle one when it is wanted.

use std::sync::{Arc, PoisonError, Weak};

use crate::app::App;
use crate::audit::Audit;
use crate::config::Config;
use crate::host::{Host, HostError, Loader, describe};
use crate::services::Entry;

impl Host {
    /// [`Host::new`] with all services loaded.
    pub fn start(
        app: Arc<App>,
        loader: Arc<dyn Loader>,
        audit: Audit,
        config: Config,
        progress: impl Fn(&str),
    ) -> Result<Arc<Self>, HostError> {
        let host = Self::new(app, loader, audit, config);
        host.load_all(progress)?;
        Ok(host)
    }

    /// Loads the services that are starting, one after the other; each answers from then on. `progress` hears the name of
    /// each before. Fails with the first that cannot be loaded. Blocks.
    pub fn load_all(&self, progress: impl Fn(&str)) -> Result<(), HostError> {
        let services = self.file.lock().unwrap_or_else(PoisonError::into_inner).service.clone();
        while let Some(entry) = self.app.services.starting() {
            let Some(wanted) = services.get(&entry.name) else { return Err(HostError::Unknown(entry.name.clone())) };
            progress(&entry.name);
            entry.put(self.load(&entry.name, wanted)?);
        }
        Ok(())
    }

    /// Loads a service that was idle and is marked as loading.
    pub(crate) fn wake(&self, entry: &Entry) {
        let wanted = self.made().get(&entry.name).map(|made| made.now.clone());
        let Some(wanted) = wanted else { return entry.rest(None) };
        let loaded = self.load(&entry.name, &wanted);
        let to = describe(&wanted);
        let error = loaded.as_ref().err().map(ToString::to_string);
        let outcome = if error.is_none() { "done" } else { "failed" };
        self.note(&entry.name, "load", ("", &to), outcome, error.as_deref());
        match loaded {
            Ok(served) => entry.put(served),
            Err(_) => entry.rest(error),
        }
    }

    /// From now on an idle service is loaded when it is wanted, on a thread of its own.
    pub(crate) fn load_what_is_wanted(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.app.services.on_wanted(move |entry| {
            let host = Weak::clone(&weak);
            let of_thread = Arc::clone(&entry);
            let body = move || {
                if let Some(host) = host.upgrade() {
                    host.wake(&of_thread);
                }
            };
            if std::thread::Builder::new().name("load".to_owned()).spawn(body).is_err() {
                entry.rest(Some("no thread to load it".to_owned()));
            }
        });
    }
}
