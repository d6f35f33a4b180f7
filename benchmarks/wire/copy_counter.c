/* Counts the bytes that memcpy and memmove copy in large pieces; preloaded into a server.

   The sum, a uint64, is in the file that COPY_COUNTER names while the process runs. Small pieces,
   such as headers and the interpreter's own copies, are left out. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 4096 };

typedef void *copier(void *, const void *, size_t);

static copier *real_memcpy, *real_memmove;
static atomic_ullong nowhere, *copied = &nowhere;

static copier *find(copier **kept, const char *name) {
    if (!*kept) *kept = (copier *)dlsym(RTLD_NEXT, name);
    return *kept;
}

void *memcpy(void *to, const void *from, size_t n) {
    if (n >= LARGE) atomic_fetch_add(copied, n);
    return find(&real_memcpy, "memcpy")(to, from, n);
}

void *memmove(void *to, const void *from, size_t n) {
    if (n >= LARGE) atomic_fetch_add(copied, n);
    return find(&real_memmove, "memmove")(to, from, n);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("COPY_COUNTER");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof *copied, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) copied = memory;
    close(file);
}
