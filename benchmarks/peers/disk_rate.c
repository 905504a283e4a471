/* The rate of the disk by itself, without the page cache: disk_rate PATH MODE FILE_BYTES
 * REQUEST_BYTES DEPTH SECONDS prints bytes per second. MODE: write (a new file, with fdatasync),
 * read (sequential), random (aligned requests at random places, for SECONDS). There are DEPTH
 * threads with one request each. If the file system has no O_DIRECT, "buffered" follows. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const size_t kHugePage = 2u << 20;
static int fd;
static char mode;
static uint64_t file_bytes, request_bytes;
static double deadline;
static atomic_uint_fast64_t next_request, bytes_done;
static atomic_int failure;

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t Next(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  return *state ^= *state << 17;
}

static void* Work(void* argument) {
  uint64_t state = 0x9e3779b97f4a7c15u * ((uint64_t)(uintptr_t)argument + 1);
  const uint64_t requests = file_bytes / request_bytes;
  char* buffer = NULL;
  const size_t size = (request_bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (posix_memalign((void**)&buffer, kHugePage, size) != 0) {
    failure = ENOMEM;
    return NULL;
  }
  /* With small pages a request has many segments: a virtual disk that reads 3.5 GB/s into huge
   * pages reads 1.2 GB/s without them. */
  madvise(buffer, size, MADV_HUGEPAGE);
  /* Random bytes, because a disk may store zeros without writing them. */
  for (uint64_t i = 0; i < request_bytes; i += 8) {
    const uint64_t word = Next(&state);
    memcpy(buffer + i, &word, 8);
  }
  while (failure == 0) {
    uint64_t request;
    if (mode == 'r') {
      if (Now() >= deadline) break;
      request = Next(&state) % requests;
    } else {
      request = atomic_fetch_add(&next_request, 1);
      if (request >= requests) break;
    }
    const off_t offset = (off_t)(request * request_bytes);
    const ssize_t done = mode == 'w' ? pwrite(fd, buffer, request_bytes, offset)
                                     : pread(fd, buffer, request_bytes, offset);
    if (done != (ssize_t)request_bytes) {
      failure = done < 0 ? errno : EIO;
      break;
    }
    bytes_done += request_bytes;
  }
  free(buffer);
  return NULL;
}

int main(int count, char** arguments) {
  if (count != 7) {
    fprintf(stderr, "disk_rate PATH write|read|random FILE_BYTES REQUEST_BYTES DEPTH SECONDS\n");
    return 2;
  }
  mode = strcmp(arguments[2], "random") == 0 ? 'r' : strcmp(arguments[2], "write") == 0 ? 'w' : 's';
  file_bytes = strtoull(arguments[3], NULL, 10);
  request_bytes = strtoull(arguments[4], NULL, 10);
  const int depth = atoi(arguments[5]);
  if (request_bytes == 0 || request_bytes % 4096 != 0 || file_bytes < request_bytes || depth < 1 ||
      depth > 256) {
    fprintf(stderr, "disk_rate: requests must be multiples of 4096 within the file, depth 1-256\n");
    return 2;
  }
  const int flags = mode == 'w' ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY;
  const char* how = "direct";
  fd = open(arguments[1], flags | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EINVAL) {
    how = "buffered";
    fd = open(arguments[1], flags | O_CLOEXEC, 0600);
    if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  }
  if (fd < 0) {
    perror(arguments[1]);
    return 1;
  }
  const double started = Now();
  deadline = started + atof(arguments[6]);
  pthread_t threads[256];
  for (int i = 0; i < depth; ++i) {
    if (pthread_create(&threads[i], NULL, Work, (void*)(intptr_t)i) != 0) return 1;
  }
  for (int i = 0; i < depth; ++i) pthread_join(threads[i], NULL);
  if (failure == 0 && mode == 'w' && fdatasync(fd) != 0) failure = errno;
  if (failure != 0) {
    fprintf(stderr, "%s: %s\n", arguments[1], strerror(failure));
    return 1;
  }
  printf("%.0f %s\n", (double)bytes_done / (Now() - started), how);
  return 0;
}
