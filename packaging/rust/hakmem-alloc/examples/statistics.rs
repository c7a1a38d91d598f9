//! What a program's heap holds, and whose it is.

use hakmem_alloc::{owns, statistics, Hakmem};

#[global_allocator]
static ALLOCATOR: Hakmem = Hakmem;

fn main() {
    let words: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
    assert!(owns(words.as_ptr()) && owns(words[9_999].as_ptr()) && !owns(&words));
    let found = statistics();
    println!(
        "{} live blocks, {} bytes",
        found.live_blocks, found.live_bytes
    );
    assert!(found.live_blocks >= 10_000);
}
