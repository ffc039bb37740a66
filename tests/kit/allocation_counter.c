/* Counts what asks for memory while it is told to: loaded with LD_PRELOAD, in front of the C library. glibc only. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int is_counting;
static atomic_long allocations;

void begin_counting(void) {
  atomic_store(&allocations, 0);
  atomic_store(&is_counting, 1);
}

long end_counting(void) {
  atomic_store(&is_counting, 0);
  return atomic_load(&allocations);
}

static void note(void) {
  if (atomic_load(&is_counting)) atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes) {
  note();
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  note();
  return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
  note();
  return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **block, size_t alignment, size_t bytes) {
  *block = memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  note();
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
