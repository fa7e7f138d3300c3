// Loaded by the driver into a program under CUDA_INJECTION64_PATH: writes begin and end of each of its kernels, copies
// and fills to the file KERNEL_TRACE, in nanoseconds: begin end blocks name. Those of recorded graphs are among them.
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static FILE* out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  *size = 8 << 20;
  *buffer = aligned_alloc(8, *size);
  *records = 0;
}

static void write_record(const CUpti_Activity* at) {
  if (at->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const CUpti_ActivityKernel10* k = (const CUpti_ActivityKernel10*)at;
    const long long blocks = (long long)k->gridX * k->gridY * k->gridZ;
    fprintf(out, "%llu %llu %lld %s\n", (unsigned long long)k->start, (unsigned long long)k->end, blocks, k->name);
  } else if (at->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const CUpti_ActivityMemcpy6* k = (const CUpti_ActivityMemcpy6*)at;
    fprintf(out, "%llu %llu 0 copy\n", (unsigned long long)k->start, (unsigned long long)k->end);
  } else if (at->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const CUpti_ActivityMemset4* k = (const CUpti_ActivityMemset4*)at;
    fprintf(out, "%llu %llu 0 fill\n", (unsigned long long)k->start, (unsigned long long)k->end);
  }
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid) {
  (void)context;
  (void)stream;
  (void)size;
  CUpti_Activity* at = NULL;
  pthread_mutex_lock(&lock);
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &at) == CUPTI_SUCCESS) write_record(at);
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static void finish(void) {
  cuptiActivityFlushAll(1);
  fclose(out);
}

__attribute__((visibility("default"))) int InitializeInjection(void) {
  const char* path = getenv("KERNEL_TRACE");
  out = path == NULL ? NULL : fopen(path, "w");
  if (out == NULL) return 0;
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
  atexit(finish);
  return 1;
}
