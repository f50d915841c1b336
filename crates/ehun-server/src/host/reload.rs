//! Reading the configuration again: what of it is taken over while the server runs.

use std::sync::{Arc, PoisonError};

use ehun_engine::rollout::Bounds;

use super::{Host, HostError, Made, describe};
use crate::app::Limits;
use crate::config::{Config, ServiceConfig};
use crate::tls::Tls;

impl Host {
    /// Makes the server what `config` says. New services are loaded first: where one cannot be, nothing changes. A changed
    /// service that cannot become what it is to be stays as it is, and is tried again with the next reload. Keys, bounds on
    /// requests, the log and the certificate (also one that was renewed in its place) are taken over; the keys of
    /// `[server]` that need a restart are given back.
    pub fn reload(&self, config: Config) -> Result<Vec<&'static str>, HostError> {
        let restart = config.needs_restart(&self.started);
        let result = self.reloaded(config);
        let outcome = if result.is_ok() { "done" } else { "refused" };
        let reason = match &result {
            Ok(()) if restart.is_empty() => None,
            Ok(()) => Some(format!("a restart is needed for {}", restart.join(", "))),
            Err(error) => Some(error.to_string()),
        };
        self.note("*", "reload", ("", ""), outcome, reason.as_deref());
        result.map(|()| restart)
    }

    /// Writes down that a configuration could not even be read.
    pub fn refuse_reload(&self, reason: &str) {
        self.note("*", "reload", ("", ""), "refused", Some(reason));
    }

    fn reloaded(&self, mut config: Config) -> Result<(), HostError> {
        if let Some(entry) = self.app.services.starting() {
            return Err(HostError::Starting(entry.name.clone()));
        }
        let old = self.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let certificate = match (&self.app.tls, &config.server.tls) {
            (Some(tls), Some(files)) => Some((tls, Tls::read(files)?)),
            _ => None,
        };
        let mut added = Vec::new();
        for (name, wanted) in config.service.iter().filter(|(name, _)| !old.service.contains_key(*name)) {
            added.push(self.load(name, wanted)?);
        }
        let mut problems = Vec::new();
        for (name, wanted) in &mut config.service {
            let Some(before) = old.service.get(name).filter(|before| *before != wanted) else { continue };
            let (from, to) = (describe(before), describe(wanted));
            let error = self.change(name, before, wanted).err().map(|error| error.to_string());
            let outcome = if error.is_none() { "done" } else { "refused" };
            self.note(name, "reload", (&from, &to), outcome, error.as_deref());
            if let Some(error) = error {
                problems.push(format!("{name}: {error}"));
                wanted.clone_from(before);
            }
        }
        for name in old.service.keys().filter(|name| !config.service.contains_key(*name)) {
            self.app.services.remove(name);
            self.made().remove(name);
            self.note(name, "reload", (&describe(&old.service[name]), ""), "done", None);
        }
        for served in added {
            self.note(&served.name, "reload", ("", served.model.name()), "done", None);
            self.app.services.add(served);
        }
        self.app.keys.replace(config.key.clone());
        self.app.set_limits(Limits::from(&config.server));
        self.app.set_log(config.server.log);
        if let Some((tls, new)) = certificate {
            tls.replace(&new);
        }
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = config;
        if problems.is_empty() { Ok(()) } else { Err(HostError::Reload(problems.join("; "))) }
    }

    /// Makes one service another way.
    fn change(&self, name: &str, before: &ServiceConfig, wanted: &ServiceConfig) -> Result<(), HostError> {
        let entry = self.app.services.entry(name).ok_or_else(|| HostError::Unknown(name.to_owned()))?;
        let Ok(_changing) = entry.changing.try_lock() else { return Err(HostError::Busy(name.to_owned())) };
        let is_same = wanted.loads_like(before);
        // What `ehun ctl` made of the service stays where the file says nothing new of it.
        let running = self.made().get(name).map_or_else(|| before.clone(), |made| made.now.clone());
        let now = if is_same { running.with_limits_of(wanted) } else { wanted.clone() };
        let Some(served) = entry.live() else {
            self.made().insert(name.to_owned(), Made { now, candidate: None });
            return Ok(());
        };
        let same_task = wanted.task.is_none_or(|task| task == served.model.task());
        let limits = |of: &ServiceConfig| (of.limits.queue_tokens, of.limits.batch_tokens);
        if is_same && limits(wanted) == limits(before) {
            self.take_over(&entry, &served, &now);
        } else if is_same {
            // Another queue in front of the same deployment; what is in the old one is answered by it.
            let workers = served.service.config().workers;
            let service = self.service(name, &now, served.service.deployment(), workers)?;
            entry.put(super::served(name, &now, Arc::clone(&served.model), service));
            self.made().insert(name.to_owned(), Made { now, candidate: None });
        } else if same_task && wanted.model == before.model && wanted.limits.max_tokens == before.limits.max_tokens {
            self.swap(&entry, &served, wanted, &Bounds::default(), false)?;
        } else {
            // Another model: its answers are meant to be other ones.
            entry.put(self.load(name, wanted)?);
        }
        Ok(())
    }
}
