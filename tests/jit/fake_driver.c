/* A CUDA driver that launches nothing and says what it was asked to: for calls that are made on a machine without a GPU. */
#include <cuda.h>
#include <string.h>

static int launches, failing, asked; /* asked: for clusters */
static int until_failure = -1;         /* launches before one fails, once; -1: none does */
static void (*during)(void);           /* called once, within a launch */
static unsigned char first_bytes[32]; /* of its parameters, which are no fewer */
static CUlaunchConfig last;

int fake_launches(void) { return launches; }
int fake_asked(void) { return asked; }
void fake_fail(int on) { failing = on; }
void fake_fail_after(int count) { until_failure = count; }
void fake_during(void (*call)(void)) { during = call; }
const unsigned char *fake_params(void) { return first_bytes; }
unsigned fake_grid(void) { return last.gridDimX; }
unsigned fake_block(void) { return last.blockDimX; }
unsigned fake_shared(void) { return last.sharedMemBytes; }
unsigned fake_attributes(void) { return last.numAttrs; }
size_t fake_stream(void) { return (size_t)last.hStream; }

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **text) { return *text = "FAKE", CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) { return *value = 132, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return *context = (CUcontext)(size_t)(device + 1), CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *context) { return CUDA_SUCCESS; }
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c, CUlibraryOption *d,
                           void **e, unsigned f) {
  if (code == NULL || memcmp(code, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE; /* as a driver refuses what is no cubin */
  return *library = (CUlibrary)code, CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { return *kernel = (CUkernel)name, CUDA_SUCCESS; }
CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) { return CUDA_SUCCESS; }
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { return *function = (CUfunction)kernel, CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t bytes) {
  return *blocks = 1, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
  return ++asked, *clusters = (int)(config->sharedMemBytes / 16), CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  void (*const now)(void) = during;
  during = NULL;
  if (now != NULL) now();
  if (failing || (until_failure >= 0 && until_failure-- == 0)) return CUDA_ERROR_LAUNCH_FAILED;
  ++launches;
  last = *config;
  memcpy(first_bytes, params[0], sizeof first_bytes);
  return CUDA_SUCCESS;
}
