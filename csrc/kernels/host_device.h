// How the row algorithms are declared: internal linkage (each instruction set keeps its own copy), host and device.
#pragma once

#if defined(__CUDACC__)
#define SOFTRANK_ROW static inline __host__ __device__
#else
#define SOFTRANK_ROW static inline
#endif
