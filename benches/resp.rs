//! The wire: parsing requests and writing replies, compared with the redis-protocol crate.

// criterion's macro generates items without docs.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use portcullis::bench::servers::wire;
use portcullis::resp::reply::{DOUBLE_MAX, Protocol, Sink, WireReply, format_double};
use portcullis::resp::request::{Limits, Progress, RequestParser};
use redis_protocol::bytes_utils::Str;
use redis_protocol::resp2::decode::{decode, decode_range};
use redis_protocol::resp2::encode::encode_bytes;
use redis_protocol::resp2::types::BytesFrame;

/// The requests of a lock: acquire, look, release.
fn requests() -> [(&'static str, Vec<u8>); 3] {
    let name = "lock:order:000012345";
    let token = "5f0c2a3e-8f0e-4f47-9d2b-0c2c4f2f7a10";
    [
        ("set", wire::encode(&["SET", name, token, "NX", "PX", "30000"])),
        ("get", wire::encode(&["GET", name])),
        ("evalsha", wire::encode(&["EVALSHA", "bb0a4ad0a0b3ec1ef2a1c7a5b1f7a9a6a8f6e3d1", "1", name, token])),
    ]
}

/// Parses all of a buffer and touches every argument, as execution would.
fn parse_all(parser: &mut RequestParser, limits: &Limits, mut buf: &[u8]) -> usize {
    let mut touched = 0;
    while let Ok(Progress::Complete { consumed }) = parser.parse(buf, limits) {
        for argument in parser.arguments(buf) {
            touched += argument.len();
        }
        parser.reset();
        buf = &buf[consumed..];
        if buf.is_empty() {
            break;
        }
    }
    touched
}

fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    let limits = Limits::default();
    let mut parser = RequestParser::new();
    for (name, request) in requests() {
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |b| b.iter(|| parse_all(&mut parser, &limits, black_box(&request))));
        group.bench_function(format!("{name}/redis-protocol-range"), |b| b.iter(|| decode_range(black_box(&request))));
        group.bench_function(format!("{name}/redis-protocol-owned"), |b| b.iter(|| decode(black_box(&request))));
        let pipeline = request.repeat(64);
        group.throughput(Throughput::Elements(64));
        group.bench_function(format!("{name}/pipeline-64"), |b| b.iter(|| parse_all(&mut parser, &limits, black_box(&pipeline))));
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("inline", |b| {
        b.iter(|| parse_all(&mut parser, &limits, black_box(b"SET lock:order:12345 token NX PX 30000\r\n")))
    });
    // A long request that arrives in packets. The time must be linear.
    let long = [b"*100001\r\n$3\r\nDEL\r\n".to_vec(), b"$8\r\nlock:123\r\n".repeat(100_000)].concat();
    group.throughput(Throughput::Bytes(long.len() as u64));
    group.sample_size(20);
    group.bench_function("del-100k-in-packets", |b| {
        b.iter_batched(
            RequestParser::new,
            |mut parser| {
                let mut end = 0;
                while end < long.len() {
                    end = (end + 1460).min(long.len());
                    let _ = black_box(parser.parse(&long[..end], &limits));
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode");
    let mut out = Vec::with_capacity(4096);
    let token = b"5f0c2a3e-8f0e-4f47-9d2b-0c2c4f2f7a10";
    let mut bench = |name: &str, say: &dyn Fn(&mut dyn Sink)| {
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                say(&mut WireReply::new(&mut out, Protocol::Resp3));
                out.len()
            });
        });
    };
    bench("bulk", &|sink| sink.bulk(black_box(token)));
    bench("integer", &|sink| sink.integer(black_box(1)));
    bench("integer-long", &|sink| sink.integer(black_box(1_763_707_123_456)));
    bench("ok", &|sink| sink.ok());
    bench("null", &|sink| sink.null());
    bench("double", &|sink| sink.double(black_box(1234.5678)));
    bench("double-integer", &|sink| sink.double(black_box(42.0)));

    let mut frame = vec![0; 128];
    let integer = BytesFrame::Integer(1);
    group.bench_function("integer/redis-protocol", |b| b.iter(|| encode_bytes(&mut frame, black_box(&integer), false)));
    let bulk = BytesFrame::BulkString(token.to_vec().into());
    group.bench_function("bulk/redis-protocol", |b| b.iter(|| encode_bytes(&mut frame, black_box(&bulk), false)));
    let error = BytesFrame::Error(Str::from("ERR no such key"));
    group.bench_function("error/redis-protocol", |b| b.iter(|| encode_bytes(&mut frame, black_box(&error), false)));
    group.bench_function("double/digits-only", |b| b.iter(|| format_double(black_box(1234.5678), &mut [0; DOUBLE_MAX]).len()));
    group.finish();
}

criterion_group!(benches, parse, encode);
criterion_main!(benches);
