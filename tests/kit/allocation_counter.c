/* Counts what asks for memory while a function is called: loaded with LD_PRELOAD, in front of the C library. glibc
 * only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int is_counting;
static atomic_long allocations;

static _Atomic(void *) first_caller;

/* Calls run(arguments[0], ...) so many times, and returns how often anybody asked for memory meanwhile. Nothing else
 * happens on this thread: what calls 50 times from Python would count the interpreter's own memory. */
long count_allocations(long times, int32_t (*run)(void *, void *, void *, int64_t, void *, int64_t),
                       const intptr_t *arguments) {
  const intptr_t *a = arguments;
  atomic_store(&allocations, 0);
  atomic_store(&first_caller, NULL);
  atomic_store(&is_counting, 1);
  for (long i = 0; i < times; i++) run((void *)a[0], (void *)a[1], (void *)a[2], a[3], (void *)a[4], a[5]);
  atomic_store(&is_counting, 0);
  Dl_info found;
  if (first_caller && dladdr(first_caller, &found))
    fprintf(stderr, "memory asked for by %s in %s\n", found.dli_sname ? found.dli_sname : "?", found.dli_fname);
  return atomic_load(&allocations);
}

static void note(void *caller) {
  if (!atomic_load(&is_counting)) return;
  if (atomic_fetch_add(&allocations, 1) == 0) atomic_store(&first_caller, caller);
}

void *malloc(size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes) {
  note(__builtin_return_address(0));
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  note(__builtin_return_address(0));
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
