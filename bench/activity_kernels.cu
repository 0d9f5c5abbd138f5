// Kernels of known length: one that only waits, as an NCCL receive does, and one that computes on a
// few SMs. Both end by the GPU's own clock.

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void spin(unsigned long long ns, volatile int *flag) {
  const unsigned long long end = now_ns() + ns;
  while (now_ns() < end && *flag == 0) {
  }
}

__global__ void compute(unsigned long long ns, float *out) {
  const unsigned long long end = now_ns() + ns;
  float a = threadIdx.x, b = 1.0f, c = 2.0f, d = 3.0f;
  while (now_ns() < end) {
#pragma unroll 8
    for (int i = 0; i < 2048; ++i) {
      a = fmaf(a, 1.000001f, 0.5f);
      b = fmaf(b, 0.999999f, 0.25f);
      c = fmaf(c, 1.000001f, 0.125f);
      d = fmaf(d, 0.999999f, 0.0625f);
    }
  }
  if (a + b + c + d == 0.123f) *out = a;  // keeps the loop; practically never written
}

extern "C" int launch_spin(int blocks, unsigned long long ns, void *flag, void *stream) {
  spin<<<blocks, 512, 0, static_cast<cudaStream_t>(stream)>>>(ns, static_cast<int *>(flag));
  return cudaGetLastError();
}

extern "C" int launch_compute(int blocks, unsigned long long ns, void *out, void *stream) {
  compute<<<blocks, 512, 0, static_cast<cudaStream_t>(stream)>>>(ns, static_cast<float *>(out));
  return cudaGetLastError();
}
