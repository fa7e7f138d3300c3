// MKL asks these whether the processor is Intel's, and takes its slow generic path where it is not. Loaded before
// PyTorch (LD_PRELOAD) they let the peer run its AVX-512 path on AMD as well.
int mkl_serv_intel_cpu_true(void) { return 1; }
int mkl_serv_intel_cpu(void) { return 1; }
