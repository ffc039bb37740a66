/* pool.c: the thread pool, over futexes on Linux and over a mutex and condition variable elsewhere.
 *
 * Threads synchronize by words whose values only increase. A waiting thread spins on the word for a moment, then sleeps
 * in the kernel until the writer wakes it. It never yields, because yielding gives a whole time slice to any other
 * process that wants the CPU, while a sleeping thread is scheduled soon after it is woken. One clock numbers every
 * start, barrier and end of a region. So no word is ever reset, and no value that an earlier region left in a word can
 * look like an arrival. */
#define _GNU_SOURCE
#include "runtime/pool.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#define POOL_THREADS 256
#define POOL_SPINS 4000 /* longer than a sleeping thread takes to wake; otherwise one late thread makes all threads
                           late */
#define POOL_CROWDED_SPINS 64
#define POOL_STACK_BYTES (1 << 20)

/* On shared CPUs, a thread that loses its CPU makes all other threads sleep at the next barrier. A window in which this
 * sleep is a quarter of the time is crowded. A single lost CPU makes one window crowded, so regions are shrunk only
 * after several crowded windows, not counting as many as were calm in between. Regions then stay smaller for a while,
 * which doubles each time that the CPUs are still crowded afterwards. */
#define POOL_WINDOW_NS 10000000
#define POOL_CROWDED_WINDOWS 3
#define POOL_SLICE_NS 10000000 /* most sleep that one lost CPU explains; other sleep is waiting for steps of one task */
#define POOL_CROWDED_SHARE 4
#define POOL_PAUSE_NS 25000000
#define POOL_LONGEST_PAUSE_NS 400000000
#define POOL_STALE_NS 1000000 /* losses counted longer ago than this may be older than the region */

/* A word and the number of threads that sleep on it, alone on the cache lines that a prefetcher would fetch
 * together. */
typedef struct {
  _Alignas(128) _Atomic uint64_t value;
  _Atomic uint32_t sleepers;
} pool_word;

static struct {
  _Atomic int32_t busy;
  int32_t workers; /* workers are counted from 1; worker t is thread t of a region */
  int32_t cpus;    /* as last queried; 0 before that */
  uint64_t clock;
  /* This window's time in regions, and its time asleep for want of a CPU. Then the most threads of a region, until a
   * time. */
  int64_t window, crowded;
  int32_t crowded_windows; /* minus the calm windows, from 0 to POOL_CROWDED_WINDOWS */
  int64_t pause, until;
  int32_t allowed;
  int64_t begin; /* the time at which this region began */
  _Atomic int32_t awaited; /* whether a thread of this region had to sleep */
  _Atomic int64_t slept;   /* nanoseconds that threads of this region slept */
  _Atomic int64_t losses;  /* how often they lost their CPU, as far as they checked */
  pool_body body;
  void *state;
  int32_t threads;
  pool_word begun[POOL_THREADS];   /* written by the caller: the clock of the next region of worker t */
  pool_word arrived[POOL_THREADS]; /* written by thread t: the clock of the barrier or end that it has reached */
} pool;

static inline void pause_briefly(void) {
  #if defined(__x86_64__)
  __builtin_ia32_pause();
  #elif defined(__aarch64__)
  __asm__ volatile("yield");
  #endif
}

#if defined(__linux__)
/* A futex has 32 bits: the low half of the word. */
static inline void futex(pool_word *word, int operation, uint32_t number) {
  const int low = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0;
  syscall(SYS_futex, (char *)&word->value + low, operation, number, NULL, NULL, 0);
}

static inline void wake_sleepers(pool_word *word) { futex(word, FUTEX_WAKE_PRIVATE, INT_MAX); }

/* May return early. */
static inline void sleep_at(pool_word *word, uint64_t value) { futex(word, FUTEX_WAIT_PRIVATE, (uint32_t)value); }

/* How often this thread lost its CPU to another thread; -1 where the system does not report it. */
static long lost_cpus(void) {
  struct rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : -1;
}

static int32_t usable_cpus(void) {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : POOL_THREADS;
}
#else
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;

static inline void wake_sleepers(pool_word *word) {
  (void)word;
  pthread_mutex_lock(&sleeping);
  pthread_cond_broadcast(&woken);
  pthread_mutex_unlock(&sleeping);
}

static inline void sleep_at(pool_word *word, uint64_t value) {
  pthread_mutex_lock(&sleeping);
  while (atomic_load(&word->value) == value) pthread_cond_wait(&woken, &sleeping);
  pthread_mutex_unlock(&sleeping);
}

static long lost_cpus(void) { return -1; }

static int32_t usable_cpus(void) {
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  return cpus > 0 && cpus < POOL_THREADS ? (int32_t)cpus : POOL_THREADS;
}
#endif

/* No wake-up is lost: the writer stores before it checks for sleepers, and a sleeper counts itself before it checks the
 * value. */
static void word_set(pool_word *word, uint64_t value) {
  atomic_store(&word->value, value);
  if (atomic_load(&word->sleepers)) wake_sleepers(word);
}

/* How long this thread spins, and how often it had lost its CPU when it last stopped spinning. */
static _Thread_local struct {
  int32_t spins;
  long losses;
  int64_t slept; /* nanoseconds, at barriers */
  long seen;     /* losses that were already reported, or that happened outside of regions */
  int64_t looked; /* the time of that count */
} patience = {.spins = POOL_SPINS};

static void gain_patience(void) { patience.spins = patience.spins < POOL_SPINS / 2 ? 2 * patience.spins : POOL_SPINS; }

/* Stop spinning. On shared CPUs, spinning keeps the awaited thread from running: spin less from now on, until waits
 * pass without this thread losing its CPU. */
static void lose_patience(void) {
  const long losses = lost_cpus();
  if (losses < 0) return;
  if (losses == patience.losses) {
    gain_patience();
  } else {
    patience.spins = POOL_CROWDED_SPINS;
    patience.losses = losses;
  }
}

/* Return the value once it is at least `least`, or 0 when that takes longer than this thread spins. */
static uint64_t word_spin(pool_word *word, uint64_t least) {
  uint64_t value = atomic_load_explicit(&word->value, memory_order_acquire);
  if (value >= least) return value;
  for (int32_t i = 0; i < patience.spins; i++) {
    pause_briefly();
    value = atomic_load_explicit(&word->value, memory_order_acquire);
    if (value >= least) {
      gain_patience();
      return value;
    }
  }
  lose_patience();
  return 0;
}

/* Sleep until the value is at least `least`, and return it. */
static uint64_t word_sleep(pool_word *word, uint64_t least) {
  uint64_t value;
  atomic_fetch_add(&word->sleepers, 1);
  while ((value = atomic_load(&word->value)) < least) sleep_at(word, value);
  atomic_fetch_sub(&word->sleepers, 1);
  return value;
}

static int64_t now_nanoseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Wait until thread t has reached the clock in this region. */
static void await(int32_t t, uint64_t clock) {
  if (word_spin(&pool.arrived[t], clock)) return;
  atomic_store_explicit(&pool.awaited, 1, memory_order_relaxed);
  int64_t begin = now_nanoseconds();
  word_sleep(&pool.arrived[t], clock);
  patience.slept += now_nanoseconds() - begin;
}

void pool_barrier(pool_member *member) {
  if (member->threads == 1) return;
  member->clock++;
  word_set(&pool.arrived[member->thread], member->clock);
  for (int32_t t = 0; t < member->threads; t++)
    if (t != member->thread) await(t, member->clock);
}

/* At the start of a region: discard losses from the time outside of regions. */
static void forget_losses(void) {
  if (pool.begin - patience.looked < POOL_STALE_NS) return;
  patience.seen = lost_cpus();
  patience.looked = pool.begin;
}

/* At the end of a region in which a thread slept: report how long this thread slept and how often it lost its CPU. */
static void account(void) {
  if (!atomic_load_explicit(&pool.awaited, memory_order_relaxed)) return;
  const long losses = lost_cpus();
  atomic_fetch_add_explicit(&pool.losses, losses - patience.seen, memory_order_relaxed);
  patience.seen = losses;
  atomic_fetch_add_explicit(&pool.slept, patience.slept, memory_order_relaxed);
  patience.slept = 0;
}

/* After a region of several threads: at the end of a window, decide whether the next regions get fewer threads. */
static void look_back(int32_t threads) {
  int64_t end = now_nanoseconds();
  pool.window += end - pool.begin;
  int64_t slept = atomic_exchange_explicit(&pool.slept, 0, memory_order_relaxed) / (threads - 1);
  int64_t explained = atomic_exchange_explicit(&pool.losses, 0, memory_order_relaxed) * POOL_SLICE_NS;
  pool.crowded += slept < explained ? slept : explained;
  if (pool.window < POOL_WINDOW_NS) return;
  const int is_crowded = pool.crowded * POOL_CROWDED_SHARE >= pool.window;
  pool.window = pool.crowded = 0;
  if (!is_crowded) {
    if (pool.crowded_windows > 0) pool.crowded_windows--;
    if (pool.crowded_windows == 0) pool.pause = 0;
    return;
  }
  if (pool.crowded_windows < POOL_CROWDED_WINDOWS) pool.crowded_windows++;
  if (pool.crowded_windows < POOL_CROWDED_WINDOWS) return;
  pool.allowed = threads - (threads + 3) / 4;
  pool.pause = pool.pause == 0 ? POOL_PAUSE_NS : pool.pause * 2;
  if (pool.pause > POOL_LONGEST_PAUSE_NS) pool.pause = POOL_LONGEST_PAUSE_NS;
  pool.until = end + pool.pause;
}

static void *work(void *argument) {
  pool_member member = {.thread = (int32_t)(intptr_t)argument};
  for (;;) {
    pool_word *begun = &pool.begun[member.thread];
    uint64_t clock = word_spin(begun, member.clock + 1);
    member.clock = clock ? clock : word_sleep(begun, member.clock + 1);
    member.threads = pool.threads;
    forget_losses();
    pool.body(pool.state, &member);
    account();
    member.clock++;
    word_set(&pool.arrived[member.thread], member.clock);
  }
  return NULL;
}

/* Start workers for a region of `threads`. If the system refuses, it is not an error: the region is smaller, and its
 * results are the same. */
static void grow(int32_t threads) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, POOL_STACK_BYTES);
  /* The host's signal handlers run on the host's threads only. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (pool.workers + 1 < threads) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, (void *)(intptr_t)(pool.workers + 1)) != 0) break;
    pool.workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
}

/* A child of fork has the words but not the workers, and perhaps a region that another thread left half done: reset. */
static void forget_workers(void) {
  pool.workers = 0;
  pool.clock = 0;
  atomic_store(&pool.awaited, 0);
  atomic_store(&pool.slept, 0);
  atomic_store(&pool.losses, 0);
  for (int32_t t = 0; t < POOL_THREADS; t++) {
    atomic_store(&pool.begun[t].value, 0);
    atomic_store(&pool.begun[t].sleepers, 0);
    atomic_store(&pool.arrived[t].value, 0);
    atomic_store(&pool.arrived[t].sleepers, 0);
  }
  #if !defined(__linux__)
  pthread_mutex_init(&sleeping, NULL);
  pthread_cond_init(&woken, NULL);
  #endif
  atomic_store(&pool.busy, 0);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

void pool_run(pool_body body, void *state, int32_t threads) {
  if (threads > POOL_THREADS) threads = POOL_THREADS;
  pool_member member = {.thread = 0, .threads = 1};
  if (threads <= 1 || atomic_exchange(&pool.busy, 1)) {
    body(state, &member);
    return;
  }
  /* With more threads than CPUs every barrier would need a context switch. */
  if (threads > pool.cpus) pool.cpus = usable_cpus();
  if (threads > pool.cpus) threads = pool.cpus;
  pool.begin = now_nanoseconds();
  if (pool.begin < pool.until && threads > pool.allowed) threads = pool.allowed;
  if (threads <= 1) {
    atomic_store(&pool.busy, 0);
    body(state, &member);
    return;
  }
  if (pool.workers + 1 < threads) grow(threads);
  member.threads = pool.workers + 1 < threads ? pool.workers + 1 : threads;
  member.clock = pool.clock + 1;
  pool.body = body;
  pool.state = state;
  pool.threads = member.threads;
  for (int32_t t = 1; t < member.threads; t++) word_set(&pool.begun[t], member.clock);
  forget_losses();
  body(state, &member);
  member.clock++;
  for (int32_t t = 1; t < member.threads; t++) await(t, member.clock);
  pool.clock = member.clock;
  account();
  atomic_store_explicit(&pool.awaited, 0, memory_order_relaxed);
  if (member.threads > 1) look_back(member.threads);
  atomic_store(&pool.busy, 0);
}
