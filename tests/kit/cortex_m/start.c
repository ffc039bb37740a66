/* start.c: what runs a model on an emulated board without any system. What MODEL_check returns, how much stack it took
 * and how long, in cycles of the board's clock, is told to the emulator by semihosting. */
#include <stdint.h>

long MODEL_check(void);

/* A program may have these: what it does before the clock starts, and the most bytes that it had of malloc. */
__attribute__((weak)) void prepare(void);
extern __attribute__((weak)) unsigned long allocated;

extern uint32_t bss_begin[], bss_end[], stack_top[];

enum { PAINT = 0x5eed5eed, WRITE0 = 0x04, EXIT_EXTENDED = 0x20, EXITED = 0x20026, ROOM = 64 << 10 };

static volatile uint32_t *const systick = (volatile uint32_t *)0xe000e010; /* counts down from systick[1] */

static void host(int operation, const void *argument) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void say(const char *name, unsigned long value) {
  char text[12], *end = text + sizeof text - 1;
  *end = 0;
  do *--end = (char)('0' + value % 10);
  while (value /= 10);
  host(WRITE0, name);
  host(WRITE0, end);
  host(WRITE0, "\n");
}

__attribute__((noreturn, noinline, used)) static void tried(void) {
  uint32_t *const low = stack_top - ROOM / 4, *const mine = (uint32_t *)__builtin_frame_address(0) - 32;
  for (volatile uint32_t *p = low; p < mine; p++) *p = PAINT;
  systick[1] = 0xffffff;
  systick[2] = 0;
  systick[0] = 5;
  const uint32_t begin = systick[2];
  const long different = MODEL_check();
  const uint32_t ticks = (begin - systick[2]) & 0xffffff;
  const uint32_t *deepest = low;
  while (*deepest == PAINT) deepest++;
  say("different ", (unsigned long)different);
  say("stack ", (unsigned long)((const char *)mine - (const char *)deepest));
  say("ticks ", ticks);
  if (&allocated) say("allocated ", allocated);
  const uint32_t exited[2] = {EXITED, different != 0};
  host(EXIT_EXTENDED, exited);
  for (;;) {}
}

__attribute__((noreturn)) static void fault(void) {
  const uint32_t exited[2] = {EXITED, 70};
  host(EXIT_EXTENDED, exited);
  for (;;) {}
}

__attribute__((noreturn)) void reset(void) {
  *(volatile uint32_t *)0xe000ed88 |= 0xf << 20; /* the coprocessors that are the FPU */
  __asm__ volatile("dsb\n isb");
  for (volatile uint32_t *p = bss_begin; p < bss_end; p++) *p = 0;
  if (prepare) prepare();
  tried();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    stack_top, reset, fault, fault, fault, fault, fault,
};
