package main

/*
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include "threads.h"

// A forked child must not keep the parent's connections open: the server would not notice the parent's end. Only C may
// run there. The callback connection is opened in the background when it is needed, so a fork waits for one that is on
// its way, but not for long. Bulk connections come later, or never. There are some 20 sockets a server at most.
enum { max_sockets = 16 * 20, patience = 200 };
static int scuda_sockets[max_sockets];
static int scuda_socket_count, scuda_expected = 1;

static void scuda_expect_socket(void) { __atomic_add_fetch(&scuda_expected, 1, __ATOMIC_RELEASE); }

static void scuda_before_fork(void) {
	for (int i = 0; i < patience; i++) {
		int expected = __atomic_load_n(&scuda_expected, __ATOMIC_ACQUIRE);
		if (__atomic_load_n(&scuda_socket_count, __ATOMIC_ACQUIRE) >= expected) break;
		usleep(1000);
	}
}

// What the program has put in the place of a socket stays.
static void scuda_in_child(void) {
	for (int i = 0; i < scuda_socket_count; i++) {
		int type;
		socklen_t n = sizeof type;
		if (!getsockopt(scuda_sockets[i], SOL_SOCKET, SO_TYPE, &type, &n)) close(scuda_sockets[i]);
	}
	scuda_socket_count = 0;
}

static void scuda_remember_socket(int fd) {
	int n = scuda_socket_count;
	if (n == max_sockets) return;
	if (n == 0) pthread_atfork(scuda_before_fork, NULL, scuda_in_child);
	scuda_sockets[n] = fd;
	__atomic_store_n(&scuda_socket_count, n + 1, __ATOMIC_RELEASE);
}

static void scuda_run_host(uintptr_t fn, uintptr_t user, uint64_t stream, uint32_t kind, int32_t status) {
	if (kind == 1) ((void (*)(void *, int32_t, void *))fn)((void *)stream, status, (void *)user);
	else ((void (*)(void *))fn)((void *)user);
}

static int32_t scuda_next_mapped(void *u, uintptr_t next) {
	return ((int32_t (*)(void *))next)(u);
}

// The driver prints with C's stdio, so its text and the program's own keep their order.
static void scuda_print(uint32_t stream, void *text, uint64_t bytes) {
	FILE *f = stream == 2 ? stderr : stdout;
	fwrite(text, 1, bytes, f);
	fflush(f);
}
*/
import "C"

import (
	"sync"
	"unsafe"

	"scuda.dev/scuda/shim/session"
)

var sockets sync.Mutex

func rememberSocket(fd int) {
	sockets.Lock()
	defer sockets.Unlock()
	C.scuda_remember_socket(C.int(fd))
}

func threadsReady(n int) bool { return C.scuda_threads_ready(C.int(n)) != 0 }

// tellLost says where to note that the session cannot go on.
func tellLost(s *session.Shared) { C.scuda_threads_lost = (*C.uint32_t)(unsafe.Pointer(&s.Lost)) }

func expectSocket() { C.scuda_expect_socket() }

func runHost(f session.HostFunction, status int32) {
	C.scuda_run_host(C.uintptr_t(f.Func), C.uintptr_t(f.User), C.uint64_t(f.Stream), C.uint32_t(f.Kind), C.int32_t(status))
}

// nextMapped gives the front's next upload of pinned memory that kernels use.
func nextMapped(s *session.Shared, u *session.MappedUpload) bool {
	return s.Mapped != 0 && C.scuda_next_mapped(unsafe.Pointer(u), C.uintptr_t(s.Mapped)) != 0
}

// print writes what kernels printed to the program's standard output (1) or error (2).
func print(stream uint32, text []byte) {
	if len(text) > 0 {
		C.scuda_print(C.uint32_t(stream), unsafe.Pointer(&text[0]), C.uint64_t(len(text)))
	}
}
