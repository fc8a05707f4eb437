//! A model for real agents, on loopback: it does what the user's words say ([`crate::script`]), so that the same prompt
//! has a real agent do what it has a fake one do.
//!
//! It knows as much of the vendors' interfaces as the agents need, and counts no tokens but those it is told to.

mod anthropic;
mod gemini;
mod http;
mod reply;
mod responses;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use self::http::{Exchange, Request};

/// The running server. Dropping it ends it.
#[derive(Debug)]
pub struct Model {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    accepts: Option<JoinHandle<()>>,
}

impl Model {
    /// Starts it on a free port of loopback.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap_or_else(|error| panic!("the model cannot listen: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let accepts = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // It ends with its connection, and that with the agent.
                std::thread::spawn(move || answer(stream));
            }
        });
        Self { address, over, accepts: Some(accepts) }
    }

    /// Its URL, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _woken = TcpStream::connect(self.address);
        if let Some(accepts) = self.accepts.take() {
            let _joined = accepts.join();
        }
    }
}

/// A call of an MCP server's tool: its name there, and what it is given.
fn of_server(command: &str) -> Option<(&str, &str)> {
    command.strip_prefix("mcp ")?.split_once(' ')
}

/// One request. What is wrong with it is the agent's affair: it sees a connection that ends.
fn answer(stream: TcpStream) {
    let Ok(Some((request, exchange))) = Exchange::read(stream) else { return };
    let _broken = route(&request, exchange);
}

fn route(request: &Request, exchange: Exchange) -> std::io::Result<()> {
    match request.path.split('?').next().unwrap_or_default() {
        "/v1/messages" => anthropic::messages(&request.body, exchange),
        "/v1/messages/count_tokens" => exchange.json(200, &serde_json::json!({ "input_tokens": 1 })),
        "/v1/responses" => responses::responses(&request.body, exchange),
        path if gemini::is_asked(path) => gemini::generate(path, &request.body, exchange),
        "/" => exchange.json(200, &serde_json::json!({})),
        path => exchange.json(404, &serde_json::json!({ "error": { "message": format!("no {path} here") } })),
    }
}
