/* Fails the n-th call of a kind while it is armed, or kills the process there: loaded with LD_PRELOAD, in front of the C
 * library. glibc only. Allocations count where libingot, numpy or the module mmap asks for them; an interpreter without
 * memory is no subject of Ingot's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

enum { NOTHING, ALLOCATIONS, SYSTEM };
enum { MAX_RANGES = 16 };

static atomic_int kind;
static atomic_long calls, chosen;
static int code;
static struct { uintptr_t begin, end; } ranges[MAX_RANGES];
static atomic_int range_count;

static int add(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  const char *name = info->dlpi_name;
  if (!strstr(name, "libingot") && !strstr(name, "_multiarray_umath") && !strstr(name, "/mmap.cpython")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    const int n = atomic_load(&range_count);
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || n == MAX_RANGES) continue;
    ranges[n].begin = info->dlpi_addr + part->p_vaddr;
    ranges[n].end = ranges[n].begin + part->p_memsz;
    atomic_store(&range_count, n + 1);
  }
  return 0;
}

/* From now on the n-th call of the kind fails with an errno, or kills the process if that is 0. */
void fault_arm(int of_kind, long n, int with) {
  if (!atomic_load(&range_count)) dl_iterate_phdr(add, NULL);
  code = with;
  atomic_store(&calls, 0);
  atomic_store(&chosen, n);
  atomic_store(&kind, of_kind);
}

/* Nothing fails any more; returns how many calls there were. */
long fault_disarm(void) {
  atomic_store(&kind, NOTHING);
  return atomic_load(&calls);
}

static int fails(int of_kind) {
  if (atomic_load(&kind) != of_kind || atomic_fetch_add(&calls, 1) + 1 != atomic_load(&chosen)) return 0;
  if (!code) kill(getpid(), SIGKILL);
  errno = code;
  return 1;
}

static int lacks_memory(void *caller) {
  if (atomic_load(&kind) != ALLOCATIONS) return 0;
  for (int i = 0; i < atomic_load(&range_count); i++)
    if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end) return fails(ALLOCATIONS);
  return 0;
}

void *malloc(size_t bytes) { return lacks_memory(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }

void *calloc(size_t count, size_t bytes) {
  return lacks_memory(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes) {
  return lacks_memory(__builtin_return_address(0)) ? NULL : __libc_realloc(block, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  return lacks_memory(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes) {
  if (lacks_memory(__builtin_return_address(0))) return ENOMEM;
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (lacks_memory(__builtin_return_address(0)) || (file >= 0 && fails(SYSTEM))) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

static int open_below(int folder, const char *path, int flags, int mode) {
  return fails(SYSTEM) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE_OF(flags, mode)                    \
  int mode = 0;                                 \
  if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
    va_list rest;                               \
    va_start(rest, flags);                      \
    mode = va_arg(rest, int);                   \
    va_end(rest);                               \
  }

int open(const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_below(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_below(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_below(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
  MODE_OF(flags, mode)
  return open_below(folder, path, flags, mode);
}

ssize_t read(int file, void *into, size_t bytes) {
  return fails(SYSTEM) ? -1 : syscall(SYS_read, file, into, bytes);
}

ssize_t write(int file, const void *from, size_t bytes) {
  return fails(SYSTEM) ? -1 : syscall(SYS_write, file, from, bytes);
}

ssize_t sendfile64(int out, int in, off_t *offset, size_t bytes) {
  return fails(SYSTEM) ? -1 : syscall(SYS_sendfile, out, in, offset, bytes);
}

ssize_t pread64(int file, void *into, size_t bytes, off_t offset) {
  return fails(SYSTEM) ? -1 : syscall(SYS_pread64, file, into, bytes, offset);
}

int fsync(int file) { return fails(SYSTEM) ? -1 : (int)syscall(SYS_fsync, file); }

int ftruncate64(int file, off_t bytes) { return fails(SYSTEM) ? -1 : (int)syscall(SYS_ftruncate, file, bytes); }

int rename(const char *old, const char *new) {
  return fails(SYSTEM) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}

int renameat2(int a, const char *old, int b, const char *new, unsigned flags) {
  return fails(SYSTEM) ? -1 : (int)syscall(SYS_renameat2, a, old, b, new, flags);
}

int mkdir(const char *path, mode_t mode) { return fails(SYSTEM) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode); }

int unlink(const char *path) { return fails(SYSTEM) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0); }

int unlinkat(int folder, const char *path, int flags) {
  return fails(SYSTEM) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

int memfd_create(const char *name, unsigned flags) { return fails(SYSTEM) ? -1 : (int)syscall(SYS_memfd_create, name, flags); }
