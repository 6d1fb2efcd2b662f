// The place of NVIDIA's driver: this file is linked twice, as libcuda.so.1 and as libnvidia-ml.so.1.
//
// A library that is loaded under a name is what every later dlopen of that name gets. Loaded first, these two keep the
// real ones out of the process: whatever asks for a card, on whatever path, learns that there is none, and the cards of
// this machine stay untouched. Functions that nothing here calls are there for libraries that link against them.
#include "driver_functions.h"

extern "C" {

enum { CUDA_NO_DEVICE = 100, CUDA_NOT_FOUND = 500, NVML_DRIVER_NOT_LOADED = 9 };

int cuInit(unsigned flags) {
  return CUDA_NO_DEVICE;
}

int cuDriverGetVersion(int* version) {
  *version = 99000; // newer than any runtime: none complains about its age
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 0;
  return CUDA_NO_DEVICE;
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  *function = nullptr;
  return CUDA_NOT_FOUND;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, int* found) {
  *function = nullptr;
  return CUDA_NOT_FOUND;
}

// torch.cuda.device_count asks the plain nvmlInit, which is left out: it then counts the virtual cards, without a warning.
int nvmlInit_v2() {
  return NVML_DRIVER_NOT_LOADED;
}

int nvmlInitWithFlags(unsigned flags) {
  return NVML_DRIVER_NOT_LOADED;
}

const char* nvmlErrorString(int code) {
  return "no driver: the GPUs of a rehearsal are virtual";
}

#define NO_CUDA_DEVICE(name) \
  int name() { return CUDA_NO_DEVICE; }
#define NO_NVML_DRIVER(name) \
  int name() { return NVML_DRIVER_NOT_LOADED; }

FOR_EACH_CUDA_FUNCTION(NO_CUDA_DEVICE)
FOR_EACH_NVML_FUNCTION(NO_NVML_DRIVER)

} // extern "C"
