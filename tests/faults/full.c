/* Preloaded into a process, makes its disk full for files whose path has PBX_FULL_ON in it: they take
 * PBX_FULL_AFTER bytes in all. The last write of them is a short one, of whole blocks. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char* full_on;
static long left;

__attribute__((constructor)) static void begin(void) {
  full_on = getenv("PBX_FULL_ON");
  const char* bytes = getenv("PBX_FULL_AFTER");
  left = bytes == NULL ? 0 : atol(bytes);
}

/* How much of a write the disk takes; 0: none of it. */
static size_t room(int fd, size_t size) {
  char link[64], path[PATH_MAX];
  if (full_on == NULL || size == 0) return size;
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return size;
  path[length] = 0;
  if (strstr(path, full_on) == NULL) return size;
  pthread_mutex_lock(&mutex);
  const size_t taken = left < (long)size ? (size_t)left / BLOCK * BLOCK : size;
  left = taken < size ? 0 : left - (long)size;
  pthread_mutex_unlock(&mutex);
  return taken;
}

static ssize_t written(int fd, const void* data, size_t size, off_t offset) {
  const size_t taken = room(fd, size);
  if (taken == 0 && size > 0) {
    errno = ENOSPC;
    return -1;
  }
  return offset < 0 ? syscall(SYS_write, fd, data, taken)
                    : syscall(SYS_pwrite64, fd, data, taken, offset);
}

static ssize_t written_parts(int fd, const struct iovec* parts, int count, off_t offset) {
  ssize_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const off_t at = offset < 0 ? offset : offset + sum;
    const ssize_t done = written(fd, parts[i].iov_base, parts[i].iov_len, at);
    if (done < 0) return sum > 0 ? sum : done;
    sum += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return sum;
}

ssize_t write(int fd, const void* data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return written(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return written(fd, data, size, offset);
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  return written_parts(fd, parts, count, -1);
}
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  return written_parts(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec* parts, int count, off_t offset) {
  return written_parts(fd, parts, count, offset);
}
