/* Preloaded into a process, writes down every change that it makes to the files below PBX_ROOT, in
 * order, with the data, into the file PBX_JOURNAL. crash_images.py makes of it what a disk may hold
 * after a crash at any moment.
 *
 * A record: type:u8 flags:u8 inode:u32 offset:i64 path:u32+bytes second_path:u32+bytes
 * data:u32+bytes, host byte order. One mutex is held over each change and its record, so the order
 * is that of the changes. Shared mappings are not seen: LMDB writes through descriptors.
 *
 * With PBX_KILL_AT=n the process ends itself by SIGKILL right after the n-th change of a file whose
 * path has PBX_KILL_ON in it (kill_run.py). PBX_KILL_PLAN names a file that says "n part-of-path"
 * instead, read when a process begins; who comes to that change takes the file away, so that of
 * processes that have it in common one is killed, once (kill_ranks.py). Without PBX_JOURNAL nothing
 * is written down. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, SYNC, SYNC_FOLDER, LINK, MARK };
enum { DURABLE = 1 }; /* the write was durable when it returned (O_DSYNC) */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;
static char root[PATH_MAX];
static size_t root_size;
static long kill_at; /* changes that are left; 0: none is counted */
static const char* kill_on = "";
static const char* kill_plan; /* taken away by the process that is killed; NULL: there is none */

static void read_plan(const char* path) {
  static char part[PATH_MAX];
  FILE* file = fopen(path, "re");
  if (file == NULL) return;
  if (fscanf(file, "%ld %4095s", &kill_at, part) == 2) kill_on = part, kill_plan = path;
  fclose(file);
}

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv("PBX_JOURNAL");
  const char* below = getenv("PBX_ROOT");
  const char* number = getenv("PBX_KILL_AT");
  if (getenv("PBX_KILL_ON") != NULL) kill_on = getenv("PBX_KILL_ON");
  if (number != NULL) kill_at = atol(number);
  if (getenv("PBX_KILL_PLAN") != NULL) read_plan(getenv("PBX_KILL_PLAN"));
  if (below == NULL || realpath(below, root) == NULL) return;
  if (path != NULL) {
    journal = (int)syscall(SYS_open, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  if (journal >= 0 || kill_at > 0) root_size = strlen(root);
}

/* Absolute form of a path, if it lies below the root. */
static int inside(int folder, const char* path, char* out) {
  if (root_size == 0 || path == NULL) return 0;
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
  } else if (folder == AT_FDCWD) {
    char here[PATH_MAX / 2];
    if (getcwd(here, sizeof(here)) == NULL) return 0;
    snprintf(out, PATH_MAX, "%s/%s", here, path);
  } else {
    char link[64], where[PATH_MAX / 2];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
    const ssize_t size = readlink(link, where, sizeof(where) - 1);
    if (size < 0) return 0;
    where[size] = 0;
    snprintf(out, PATH_MAX, "%s/%s", where, path);
  }
  return strncmp(out, root, root_size) == 0 && (out[root_size] == '/' || out[root_size] == 0);
}

/* The file behind a descriptor, if it lies below the root. */
static int of_fd(int fd, char* path, struct stat* info) {
  if (root_size == 0 || fd == journal) return 0;
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, PATH_MAX - 1);
  if (size < 0 || fstat(fd, info) != 0) return 0;
  path[size] = 0;
  return strncmp(path, root, root_size) == 0;
}

static void put(const void* data, size_t size) {
  const char* at = data;
  while (size > 0) {
    const long done = syscall(SYS_write, journal, at, size);
    if (done <= 0) abort(); /* a journal with a hole would prove nothing */
    at += done;
    size -= (size_t)done;
  }
}

static void put_bytes(const void* data, size_t size) {
  const uint32_t count = (uint32_t)size;
  put(&count, sizeof(count));
  put(data, size);
}

static void record(uint8_t type, uint8_t flags, ino_t inode, int64_t offset, const char* path,
                   const char* second, const void* data, size_t size) {
  const uint32_t number = (uint32_t)inode;
  const int saved = errno;
  if (kill_at > 0 && (strstr(path, kill_on) != NULL || strstr(second, kill_on) != NULL)) {
    if (--kill_at == 0 && (kill_plan == NULL || syscall(SYS_unlink, kill_plan) == 0)) {
      syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    }
  }
  if (journal < 0) return;
  put(&type, 1);
  put(&flags, 1);
  put(&number, sizeof(number));
  put(&offset, sizeof(offset));
  put_bytes(path, strlen(path));
  put_bytes(second, strlen(second));
  put_bytes(data, size);
  errno = saved;
}

/* For the program: a note that it has got to here. */
void pbx_mark(const char* text) {
  pthread_mutex_lock(&mutex);
  if (journal >= 0) record(MARK, 0, 0, 0, "", "", text, strlen(text));
  pthread_mutex_unlock(&mutex);
}

static int opened(int folder, const char* path, int flags, mode_t mode) {
  char full[PATH_MAX];
  const int watched = inside(folder, path, full);
  pthread_mutex_lock(&mutex);
  struct stat info;
  const int existed = watched && stat(full, &info) == 0;
  const int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
  if (watched && fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
    if (!existed) record(CREATE, 0, info.st_ino, 0, full, "", "", 0);
    if (existed && (flags & O_TRUNC)) record(TRUNCATE, 0, info.st_ino, 0, full, "", "", 0);
  }
  pthread_mutex_unlock(&mutex);
  return fd;
}

#define MODE_ARGUMENT                           \
  mode_t mode = 0;                              \
  if (flags & (O_CREAT | __O_TMPFILE)) {        \
    va_list more;                               \
    va_start(more, flags);                      \
    mode = (mode_t)va_arg(more, int);           \
    va_end(more);                               \
  }
int open(const char* path, int flags, ...) {
  MODE_ARGUMENT return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_ARGUMENT return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  MODE_ARGUMENT return opened(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE_ARGUMENT return opened(folder, path, flags | O_LARGEFILE, mode);
}

/* offset < 0: at the descriptor's own. */
static void wrote(int fd, const void* data, ssize_t done, int64_t offset) {
  char path[PATH_MAX];
  struct stat info;
  if (done <= 0 || !of_fd(fd, path, &info)) return;
  const int flags = fcntl(fd, F_GETFL);
  if (offset < 0) offset = (int64_t)lseek(fd, 0, SEEK_CUR) - done;
  record(WRITE, (flags & (O_DSYNC | O_SYNC)) ? DURABLE : 0, info.st_ino, offset, path, "", data,
         (size_t)done);
}

ssize_t write(int fd, const void* data, size_t size) {
  pthread_mutex_lock(&mutex);
  const ssize_t done = syscall(SYS_write, fd, data, size);
  wrote(fd, data, done, -1);
  pthread_mutex_unlock(&mutex);
  return done;
}
static ssize_t wrote_at(int fd, const void* data, size_t size, off_t offset) {
  pthread_mutex_lock(&mutex);
  const ssize_t done = syscall(SYS_pwrite64, fd, data, size, offset);
  wrote(fd, data, done, offset);
  pthread_mutex_unlock(&mutex);
  return done;
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return wrote_at(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return wrote_at(fd, data, size, offset);
}
/* Vectors are written part by part: a short write is what callers must expect anyway. */
ssize_t writev(int fd, const struct iovec* parts, int count) {
  ssize_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return sum > 0 ? sum : done;
    sum += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return sum;
}
static ssize_t wrote_parts_at(int fd, const struct iovec* parts, int count, off_t offset) {
  ssize_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = wrote_at(fd, parts[i].iov_base, parts[i].iov_len, offset + sum);
    if (done < 0) return sum > 0 ? sum : done;
    sum += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return sum;
}
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  return wrote_parts_at(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec* parts, int count, off_t offset) {
  return wrote_parts_at(fd, parts, count, offset);
}

static int truncated(int fd, off_t size) {
  char path[PATH_MAX];
  struct stat info;
  pthread_mutex_lock(&mutex);
  const int failed = (int)syscall(SYS_ftruncate, fd, size);
  if (!failed && of_fd(fd, path, &info)) {
    record(TRUNCATE, 0, info.st_ino, size, path, "", "", 0);
  }
  pthread_mutex_unlock(&mutex);
  return failed;
}
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

static int synced(int fd, long number) {
  char path[PATH_MAX];
  struct stat info;
  pthread_mutex_lock(&mutex);
  const int failed = (int)syscall(number, fd);
  if (!failed && of_fd(fd, path, &info)) {
    record(S_ISDIR(info.st_mode) ? SYNC_FOLDER : SYNC, 0, info.st_ino, 0, path, "", "", 0);
  }
  pthread_mutex_unlock(&mutex);
  return failed;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* A change of names: the system call, and its record where it succeeded. */
static int named(uint8_t type, int folder, const char* path, int second_folder, const char* second,
                 int (*call)(int, const char*, int, const char*)) {
  char full[PATH_MAX], other[PATH_MAX] = "";
  const int watched = inside(folder, path, full);
  if (watched && second != NULL) inside(second_folder, second, other);
  pthread_mutex_lock(&mutex);
  struct stat info = {0};
  if (watched) lstat(full, &info);
  const int failed = call(folder, path, second_folder, second);
  if (watched && !failed) record(type, 0, info.st_ino, 0, full, other, "", 0);
  pthread_mutex_unlock(&mutex);
  return failed;
}
static int call_rename(int a, const char* from, int b, const char* to) {
  return (int)syscall(SYS_renameat, a, from, b, to);
}
static int call_unlink(int a, const char* path, int b, const char* none) {
  (void)b, (void)none;
  return (int)syscall(SYS_unlinkat, a, path, 0);
}
static int call_rmdir(int a, const char* path, int b, const char* none) {
  (void)b, (void)none;
  return (int)syscall(SYS_unlinkat, a, path, AT_REMOVEDIR);
}
static int call_mkdir(int a, const char* path, int mode, const char* none) {
  (void)none;
  return (int)syscall(SYS_mkdirat, a, path, mode);
}
static int call_link(int a, const char* from, int b, const char* to) {
  return (int)syscall(SYS_linkat, a, from, b, to, 0);
}
int rename(const char* from, const char* to) {
  return named(RENAME, AT_FDCWD, from, AT_FDCWD, to, call_rename);
}
int renameat(int a, const char* from, int b, const char* to) {
  return named(RENAME, a, from, b, to, call_rename);
}
int link(const char* from, const char* to) {
  return named(LINK, AT_FDCWD, from, AT_FDCWD, to, call_link);
}
int unlink(const char* path) { return named(UNLINK, AT_FDCWD, path, 0, NULL, call_unlink); }
int unlinkat(int folder, const char* path, int flags) {
  return (flags & AT_REMOVEDIR) ? named(RMDIR, folder, path, 0, NULL, call_rmdir)
                                : named(UNLINK, folder, path, 0, NULL, call_unlink);
}
int rmdir(const char* path) { return named(RMDIR, AT_FDCWD, path, 0, NULL, call_rmdir); }
int mkdir(const char* path, mode_t mode) {
  return named(MKDIR, AT_FDCWD, path, (int)mode, NULL, call_mkdir);
}
int mkdirat(int folder, const char* path, mode_t mode) {
  return named(MKDIR, folder, path, (int)mode, NULL, call_mkdir);
}
