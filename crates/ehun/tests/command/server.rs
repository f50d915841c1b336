//! A started `ehun serve` and its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::command;

/// A server process, killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

/// A port that was free a moment ago.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Server {
    /// Starts `ehun serve` with `arguments` on `address`, and waits until it listens.
    pub fn start(arguments: &[&str], address: SocketAddr) -> Self {
        Self::start_with(arguments, address, &[])
    }

    /// The same with variables of the environment.
    pub fn start_with(arguments: &[&str], address: SocketAddr, variables: &[(&str, &str)]) -> Self {
        let listen = address.to_string();
        let arguments = [&["serve", "--listen", &listen, "--admin", "off"], arguments].concat();
        let mut command = command(&arguments);
        command.envs(variables.iter().copied()).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let listens = lines.by_ref().map_while(Result::ok).any(|line| {
            said.push(line);
            said.last().is_some_and(|line| line.contains("listening on"))
        });
        assert!(listens, "the server did not start: {said:?}");
        // What it says later must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    /// SIGKILL: no word to anyone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Status, head in lower case, and JSON body of a POST.
    pub fn post(&self, path: &str, body: &Value) -> (u16, String, Value) {
        self.ask("POST", path, &body.to_string())
    }

    /// JSON body of a GET.
    pub fn get(&self, path: &str) -> Value {
        self.ask("GET", path, "").2
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, Value) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head, serde_json::from_str(body).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
