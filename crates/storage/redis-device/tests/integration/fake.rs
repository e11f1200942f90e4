//! A scripted server in the simulated world.

use resp::Reply;
use runtime::net::{Address, Listener, Stream};
use std::cell::RefCell;
use std::rc::Rc;

pub const SERVER: &str = "10.0.0.1:6379";

/// Action of a server in answer to a command.
pub enum Said {
    Bytes(Vec<u8>),
    Nothing,
    Close,
    /// Reply of a working, empty server.
    Usual,
}

/// Sends these bytes as the reply.
pub fn say(bytes: &str) -> Said {
    Said::Bytes(bytes.as_bytes().to_vec())
}

/// Script of a server: its action by command.
type Script = Box<dyn FnMut(&[String]) -> Said>;

/// A scripted server that records the commands that it receives.
#[derive(Clone)]
pub struct Fake {
    received: Rc<RefCell<Vec<Vec<String>>>>,
    script: Rc<RefCell<Script>>,
}

impl Fake {
    /// Listens, and answers each command by the script.
    pub fn start(address: &str, script: impl FnMut(&[String]) -> Said + 'static) -> Fake {
        let listener = Listener::bind(&address.parse::<Address>().unwrap()).unwrap();
        let fake = Fake { received: Rc::default(), script: Rc::new(RefCell::new(Box::new(script))) };
        let own = fake.clone();
        runtime::spawn(async move {
            loop {
                let stream = listener.accept().await.unwrap();
                let own = own.clone();
                runtime::spawn(async move { own.serve(stream).await }).detach();
            }
        })
        .detach();
        fake
    }

    /// Replaces the script.
    pub fn follow(&self, script: impl FnMut(&[String]) -> Said + 'static) {
        *self.script.borrow_mut() = Box::new(script);
    }

    /// Number of times that a command was received.
    pub fn count(&self, name: &str) -> usize {
        self.received.borrow().iter().filter(|command| command[0] == name).count()
    }

    async fn serve(self, stream: Stream) {
        let mut bytes = Vec::new();
        loop {
            while let Some((Reply::Array(words), length)) = resp::parse(&bytes, 4 << 20).unwrap() {
                bytes.drain(..length);
                let word = |word: Reply| match word {
                    Reply::Bulk(Some(word)) => String::from_utf8_lossy(&word).into_owned(),
                    other => panic!("{other:?} in a command"),
                };
                let words: Vec<String> = words.into_iter().map(word).collect();
                let said = (self.script.borrow_mut())(&words);
                let said = match said {
                    Said::Usual => Said::Bytes(usual(&words).into_bytes()),
                    other => other,
                };
                self.received.borrow_mut().push(words);
                match said {
                    // The client may have disconnected.
                    Said::Bytes(bytes) => drop(stream.send(block::Data::copy_of(&bytes).into()).await),
                    Said::Close => return,
                    Said::Nothing | Said::Usual => {}
                }
            }
            let (count, buffer) = stream.receive(block::Buffer::new(64 << 10)).await;
            if count.is_err() || count == Ok(0) {
                return;
            }
            bytes.extend_from_slice(buffer.filled());
        }
    }
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn usual(words: &[String]) -> String {
    match words[0].as_str() {
        "INFO" => bulk("# Server\r\nrun_id:one\r\nmaxmemory:0\r\n"),
        "CLUSTER" => "-ERR This instance has cluster support disabled\r\n".to_owned(),
        "GETRANGE" => "$0\r\n\r\n".to_owned(),
        "SETRANGE" => format!(":{}\r\n", words[2].parse::<usize>().unwrap() + 4096),
        "ASKING" => "+OK\r\n".to_owned(),
        _ => ":0\r\n".to_owned(),
    }
}

/// Runs a test in a simulated world.
pub fn simulated<Fut: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce() -> Fut + Send + 'static) {
    println!("seed {seed}");
    runtime::simulate(runtime::Simulation::new(seed), test).expect("the simulation ends");
}
