//! The contract of `GlobalAlloc`, on a program whose allocator is hakmem.

use hakmem_alloc::{owns, prewarm, purge, usable_size, Hakmem};
use std::alloc::{alloc, alloc_zeroed, dealloc, realloc, Layout};
use std::{slice, thread};

#[global_allocator]
static ALLOCATOR: Hakmem = Hakmem;

#[test]
fn blocks_are_hakmems_and_aligned() {
    for shift in 0..=16 {
        for size in [1, 7, 16, 100, 4096, 70_000, 5_000_000] {
            let layout = Layout::from_size_align(size, 1 << shift).unwrap();
            unsafe {
                let block = alloc(layout);
                assert!(owns(block) && block as usize % layout.align() == 0);
                assert!(usable_size(block) >= size);
                block.write_bytes(0xa5, size);
                let grown = realloc(block, layout, 2 * size);
                assert!(owns(grown) && grown as usize % layout.align() == 0);
                assert!(slice::from_raw_parts(grown, size)
                    .iter()
                    .all(|&byte| byte == 0xa5));
                dealloc(
                    grown,
                    Layout::from_size_align(2 * size, 1 << shift).unwrap(),
                );
                let zeroed = alloc_zeroed(layout);
                assert!(zeroed as usize % layout.align() == 0);
                assert!(slice::from_raw_parts(zeroed, size)
                    .iter()
                    .all(|&byte| byte == 0));
                dealloc(zeroed, layout);
            }
        }
    }
}

#[test]
fn what_can_not_be_had_is_null() {
    let layout = Layout::from_size_align(isize::MAX as usize - 4096, 1).unwrap();
    assert!(unsafe { alloc(layout) }.is_null());
}

#[test]
fn a_thread_frees_what_another_allocated() {
    let words = thread::spawn(|| (0..100_000).map(|n| n.to_string()).collect::<Vec<_>>())
        .join()
        .unwrap();
    assert!(words.iter().all(|word| owns(word.as_ptr())));
    drop(words);
    prewarm(1024);
    purge();
    assert!(!owns(&0));
}

#[cfg(feature = "stats")]
#[test]
fn statistics_know_of_a_large_block() {
    let block = vec![1u8; 64 << 20];
    let found = hakmem_alloc::statistics();
    assert!(owns(block.as_ptr()));
    assert!(found.large_bytes >= 64 << 20);
}

#[cfg(feature = "profile")]
#[test]
fn a_profile_is_written() {
    use hakmem_alloc::profile::{save, start, stop, Errno};
    use std::{env, ffi::CString, fs, os::unix::ffi::OsStrExt, process};

    assert_eq!(start(0), Err(Errno(22)));
    start(4096).unwrap();
    let words: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let path = env::temp_dir().join(format!("hakmem-alloc-{}.prof", process::id()));
    save(&CString::new(path.as_os_str().as_bytes()).unwrap()).unwrap();
    stop();
    assert!(fs::metadata(&path).unwrap().len() > 0 && words.len() == 100_000);
    fs::remove_file(path).unwrap();
}
