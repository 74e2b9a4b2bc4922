// Gives a software NIC dma-bufs: loaded before a program (LD_PRELOAD), it answers the program's question for libibverbs' function that
// registers them with one that maps the descriptor and registers the mapping. rxe reaches memory of a process only; what a test's CUDA
// library exports is a memfd, which a process can map.
//
// TEST_DMABUF_BROKEN=1: what is registered can be named and not reached, as on a host whose PCIe lets a NIC not get at a GPU.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void *(*find_function)(void *, const char *, const char *);
typedef void *(*register_function)(void *, void *, size_t, uint64_t, unsigned);

static find_function find;
static register_function register_mapping;

static void *register_dmabuf(void *domain, uint64_t offset, size_t length, uint64_t address, int fd, int access) {
    // Never unmapped: a test registers little.
    void *mapping = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (mapping == MAP_FAILED) return NULL;
    const char *broken = getenv("TEST_DMABUF_BROKEN");
    return register_mapping(domain, mapping, length, address, broken != NULL && *broken == '1' ? 0 : (unsigned)access);
}

void *dlvsym(void *library, const char *name, const char *version) {
    if (find == NULL) find = (find_function)dlsym(RTLD_NEXT, "dlvsym");
    if (strcmp(name, "ibv_reg_dmabuf_mr") != 0) return find(library, name, version);
    register_mapping = (register_function)find(library, "ibv_reg_mr_iova2", "IBVERBS_1.8");
    return register_mapping == NULL ? NULL : (void *)register_dmabuf;
}
