//! Concurrent requests of an asynchronous service in one running batch.
//!
//! One thread owns the session; requests come to it through a channel and join the batch between two steps. A caller awaits
//! a future, whatever its runtime. Each answer is what the request gets alone, bit for bit.
//!
//! ```text
//! cargo run --release --example service -- FOLDER
//! ```

mod tiny;

use headrow::generate::{Callbacks, GenerationOptions, Generator, Prompt};
use headrow::{Chunk, Error, Output, Result, Sequence, Session, TextModel};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Where an answer is put, and who waits for it.
#[derive(Default)]
struct Slot {
    answer: Option<Result<String>>,
    waker: Option<Waker>,
}

type Reply = Arc<Mutex<Slot>>;

/// A handle for any number of callers.
#[derive(Clone)]
struct Service {
    requests: Sender<(String, Reply)>,
}

impl Service {
    fn start(model: TextModel, options: GenerationOptions) -> Service {
        let (requests, incoming) = channel();
        thread::spawn(move || serve(&model, &options, &incoming));
        Service { requests }
    }

    async fn generate(&self, prompt: &str) -> Result<String> {
        let reply = Reply::default();
        self.requests.send((prompt.to_owned(), Arc::clone(&reply))).expect("the service runs");
        poll_fn(|context| {
            let mut slot = reply.lock().expect("no holder panics");
            slot.waker = Some(context.waker().clone());
            slot.answer.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Runs until all handles are gone.
fn serve(model: &TextModel, options: &GenerationOptions, incoming: &Receiver<(String, Reply)>) {
    const AT_ONCE: usize = 8;
    let mut session =
        model.session(&model.session_options(AT_ONCE, options)).expect("memory for a session");
    let mut generator = session.generator().expect("a model with a read-out");
    let mut waiting: Vec<(usize, Reply)> = Vec::new();
    loop {
        // An idle service sleeps; a busy one takes what has come meanwhile.
        while waiting.len() < AT_ONCE {
            let next = match waiting.is_empty() {
                true => incoming.recv().ok(),
                false => incoming.try_recv().ok(),
            };
            let Some((prompt, reply)) = next else { break };
            match begin(model, options, &mut session, &mut generator, &prompt) {
                Ok(request) => waiting.push((request, reply)),
                Err(error) => answer(&reply, Err(error)),
            }
        }
        if waiting.is_empty() {
            return;
        }
        if let Err(error) = generator.step(&mut session, &mut Callbacks::new()) {
            eprintln!("a step failed, its requests are given up: {error}");
            generator.clear(&mut session);
            waiting.drain(..).for_each(|(_, reply)| answer(&reply, Err(Error::Cancelled)));
        }
        waiting.retain(|(request, reply)| match generator.take(*request) {
            None => true,
            Some(generated) => {
                let text = |ids: &[u32]| model.tokenizer().decode(ids);
                answer(reply, generated.and_then(|generated| text(generated.best().content())));
                false
            }
        });
    }
}

/// Reads a prompt and adds its request to those that run.
fn begin(
    model: &TextModel,
    options: &GenerationOptions,
    session: &mut Session,
    generator: &mut Generator<Sequence>,
    prompt: &str,
) -> Result<usize> {
    let ids = model.tokenize(prompt)?.ids;
    let mut logits = vec![0.0; generator.limits().vocabulary];
    let sequence = session.add()?;
    session
        .extend(&[Chunk::new(sequence, &ids)], Output::LastLogits, &mut logits)
        .and_then(|()| {
            let prompt = Prompt::new(sequence, &ids, &logits);
            generator.add(session, prompt, options, &mut Callbacks::new())
        })
        .inspect_err(|_| drop(session.remove(sequence)))
}

fn answer(reply: &Reply, result: Result<String>) {
    let mut slot = reply.lock().expect("no holder panics");
    slot.answer = Some(result);
    if let Some(waker) = slot.waker.take() {
        waker.wake();
    }
}

/// What a runtime would do: polls a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn main() -> Result<()> {
    let model = tiny::model(tiny::decoder)?;
    let options = model.options().clone().with_max_new_tokens(24usize);
    let service = Service::start(model, options);
    let callers: Vec<_> = (0..12)
        .map(|caller| {
            let service = service.clone();
            let prompt =
                format!("caller {}", "abcdefghijkl".get(caller..=caller).unwrap_or_default());
            thread::spawn(move || block_on(service.generate(&prompt)).map(|text| prompt + &text))
        })
        .collect();
    for caller in callers {
        println!("{:?}", caller.join().expect("no caller panics")?);
    }
    Ok(())
}
