//! Tunnels through memory, with a clock that nobody waits for.

use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::task::JoinHandle;

use super::*;

const IDLE: Duration = Duration::from_mins(10);
/// What a duplex of these tests holds.
const PIPE_BYTES: usize = 1 << 10;

fn side(stream: DuplexStream) -> Side<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>> {
    let (from, to) = split(stream);
    Side { from, to }
}

/// A tunnel with the far ends of client and server.
fn tunnel(first: &[u8], passage: Passage) -> (DuplexStream, DuplexStream, JoinHandle<End>) {
    let (client, inside) = duplex(PIPE_BYTES);
    let (server, outside) = duplex(PIPE_BYTES);
    let carried = carry(side(inside), side(outside), first.to_vec(), passage, IDLE);
    (client, server, tokio::spawn(carried))
}

async fn expect(stream: &mut DuplexStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes, expected);
}

async fn expect_end(stream: &mut DuplexStream) {
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_direction_leaves_the_other_open() {
    let (mut client, mut server, tunnel) = tunnel(b"first ", Passage::Anything);
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    expect(&mut server, b"first question").await;
    expect_end(&mut server).await;
    server.write_all(b"answer").await.unwrap();
    expect(&mut client, b"answer").await;
    server.shutdown().await.unwrap();
    expect_end(&mut client).await;
    assert!(matches!(tunnel.await.unwrap(), End::Complete));
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_tunnel_and_each_byte_puts_it_off() {
    let (client, mut server, tunnel) = tunnel(b"", Passage::Anything);
    let began = Instant::now();
    let nearly = IDLE.checked_sub(Duration::from_secs(1)).unwrap();
    let (mut client_from, _client_to) = split(client);
    for _ in 0..5 {
        tokio::time::sleep(nearly).await;
        server.write_all(b"x").await.unwrap();
        client_from.read_exact(&mut [0]).await.unwrap();
    }
    assert!(matches!(tunnel.await.unwrap(), End::Idle));
    let expected = 5 * nearly + IDLE;
    assert!(began.elapsed() >= expected && began.elapsed() < expected + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_holds_up_the_server_and_then_ends() {
    let (_client, mut server, tunnel) = tunnel(b"", Passage::Anything);
    let mut taken = 0;
    let writing = async {
        loop {
            taken += server.write(&[0; 4096]).await?;
        }
    };
    let cut: io::Result<()> = writing.await;
    assert!(cut.is_err());
    assert!(matches!(tunnel.await.unwrap(), End::Idle));
    assert!(taken <= 2 * PIPE_BYTES + BUFFER_BYTES, "{taken} bytes are held");
}

#[tokio::test(start_paused = true)]
async fn nothing_follows_a_request_to_its_server() {
    let (mut client, mut server, tunnel) = tunnel(b"POST /", Passage::Request(Body::Bytes(4)));
    client.write_all(b"body\r\n").await.unwrap();
    expect(&mut server, b"POST /body").await;
    server.write_all(b"answer").await.unwrap();
    expect(&mut client, b"answer").await;
    client.write_all(b"GET http://other/ HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(tunnel.await.unwrap(), End::Malformed(Malformed::Followed)));
    expect_end(&mut server).await;
    expect_end(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_the_connection_of_a_request() {
    let (mut client, mut server, tunnel) = tunnel(b"GET /", Passage::Request(Body::Complete));
    expect(&mut server, b"GET /").await;
    server.write_all(b"answer").await.unwrap();
    drop(server);
    expect(&mut client, b"answer").await;
    assert!(matches!(tunnel.await.unwrap(), End::Complete));
}

#[tokio::test(start_paused = true)]
async fn an_answer_arrives_though_the_server_took_no_more() {
    let (mut client, mut server, tunnel) = tunnel(b"POST /", Passage::Request(Body::Bytes(1 << 20)));
    client.write_all(b"the beginning of a body").await.unwrap();
    server.write_all(b"too large").await.unwrap();
    drop(server);
    expect(&mut client, b"too large").await;
    assert!(matches!(tunnel.await.unwrap(), End::Complete));
}

#[tokio::test(start_paused = true)]
async fn malformed_chunks_end_the_connection() {
    let chunks = Passage::Request(Body::Chunks(super::super::body::Chunks::START));
    let (mut client, mut server, tunnel) = tunnel(b"", chunks);
    client.write_all(b"2\r\nab\r\n").await.unwrap();
    expect(&mut server, b"2\r\nab\r\n").await;
    client.write_all(b"2\nab").await.unwrap();
    assert!(matches!(tunnel.await.unwrap(), End::Malformed(Malformed::Chunks)));
    expect_end(&mut server).await;
}
