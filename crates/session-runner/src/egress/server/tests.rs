//! Heads as they arrive, with a clock that nobody waits for.

use tokio::io::duplex;
use tokio::time::Instant;

use super::*;

async fn refusal(client: &mut (impl AsyncRead + Unpin)) -> Refusal {
    hear(client).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_head_is_kept() {
    let (mut client, mut inside) = duplex(1 << 10);
    client.write_all(b"CONNECT a:1 HTTP/1.1\r\n\r\nearly\r\n\r\n").await.unwrap();
    let (head, early) = hear(&mut inside).await.unwrap().unwrap();
    assert_eq!(head, b"CONNECT a:1 HTTP/1.1\r\n\r\n");
    assert_eq!(early, b"early\r\n\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_byte_a_second_is_not_waited_for() {
    let (mut client, mut inside) = duplex(16);
    let began = Instant::now();
    let dripping = tokio::spawn(async move {
        for byte in b"CONNECT a:1 HTTP/1.1\r\n\r\n" {
            sleep(Duration::from_secs(1)).await;
            client.write_all(&[*byte]).await?;
        }
        io::Result::Ok(())
    });
    assert!(matches!(refusal(&mut inside).await, Refusal::HeadTooSlow));
    assert_eq!(began.elapsed(), HEAD_WAIT);
    drop(inside);
    assert!(dripping.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_end_is_cut_off() {
    let (mut client, mut inside) = duplex(1 << 10);
    let endless = tokio::spawn(async move {
        loop {
            client.write_all(b"a: b\r\n").await?;
        }
    });
    assert!(matches!(refusal(&mut inside).await, Refusal::HeadTooLong));
    drop(inside);
    let cut: io::Result<()> = endless.await.unwrap();
    assert!(cut.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_gets_no_answer() {
    let (client, mut inside) = duplex(16);
    drop(client);
    assert!(hear(&mut inside).await.unwrap().is_none());
    let (mut client, mut inside) = duplex(16);
    client.write_all(b"CONN").await.unwrap();
    drop(client);
    assert!(matches!(refusal(&mut inside).await, Refusal::Malformed(Malformed::Head(_))));
}
