// A witness of whoever asks for a card: writes a line into the file named by WITNESS.
//
// Linked as libcuda.so.1 and libnvidia-ml.so.1, found before the real ones, it sees the driver being loaded and asked.
// Preloaded, it sees files being opened.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

void say(const char* what, const char* which) {
  const char* path = getenv("WITNESS");
  if (path == nullptr)
    return;
  int file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0644));
  dprintf(file, "%s %s\n", what, which);
  syscall(SYS_close, file);
}

} // namespace

extern "C" {

#ifdef DRIVER
__attribute__((constructor)) void loaded() {
  say("loaded", DRIVER);
}
int cuInit(unsigned) {
  say("called", "cuInit");
  return 100;
}
int nvmlInit() {
  say("called", "nvmlInit");
  return 9;
}
int nvmlInit_v2() {
  say("called", "nvmlInit_v2");
  return 9;
}
#else
// As the C library's, which this stands before.
#define WATCHED_OPEN(name)                                                                                 \
  int name(const char* path, int flags, ...) {                                                             \
    va_list rest;                                                                                          \
    va_start(rest, flags);                                                                                 \
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0;                                                    \
    va_end(rest);                                                                                          \
    if (strncmp(path, "/dev/nvidia", 11) == 0)                                                             \
      say("opened", path);                                                                                 \
    return reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, #name))(path, flags, mode);   \
  }
WATCHED_OPEN(open)
WATCHED_OPEN(open64)
#endif

} // extern "C"
