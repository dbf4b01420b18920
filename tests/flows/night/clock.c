/* Preloaded into the processes of a node, this sets their clock two hours ahead. Only the time of day differs, as on
   a machine whose clock is wrong: intervals, and waits until a time of day, last as long as before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define AHEAD 7200
#define EPOCH 1000000000 /* larger seconds are a time of day, and smaller ones a time since the machine's start */

static long (*kernel)(long, ...);

__attribute__((constructor)) static void find(void) { kernel = dlsym(RTLD_NEXT, "syscall"); }

static const struct timespec *real(const struct timespec *until, struct timespec *copy) {
    if (!until || until->tv_sec < EPOCH) return until;
    *copy = *until;
    copy->tv_sec -= AHEAD;
    return copy;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += AHEAD;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    return now ? (*now = found.tv_sec) : found.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec copy;
    if (!next) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(condition, mutex, real(until, &copy));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec copy;
    if (!next) next = dlsym(RTLD_NEXT, "sem_timedwait");
    return next(semaphore, real(until, &copy));
}

long syscall(long number, ...) {
    va_list given;
    long a[6];
    struct timespec copy;
    va_start(given, number);
    for (int each = 0; each < 6; each++) a[each] = va_arg(given, long);
    va_end(given);
    if (!kernel) find();
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME))
        a[3] = (long)(intptr_t)real((const struct timespec *)(intptr_t)a[3], &copy);
    return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
