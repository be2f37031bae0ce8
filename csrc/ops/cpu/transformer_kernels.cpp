// The transformer's CPU kernels; compiled once per instruction set (SOFTRANK_ISA names it).
#include "cpu_kernels.h"
#include "decoder.h"
#include "encoder.h"
#include "isa_kernels.h"

namespace softrank {
namespace {

template <typename T>
void fill(TransformerKernels<T>& table) {
  table.pack_layers = pack_layers<T>;
  table.encode_rows = encode_rows<T>;
  table.encoder_scratch_numbers = encoder_scratch_numbers<T>;
  table.pack_projection = pack_projection<T>;
  table.project = project<T>;
  table.scratch_numbers = scratch_numbers<T>;
  table.decode_tile = decode_tile<T>;
  table.open_tile = open_tile<T>;
  table.advance_tile = advance_tile<T>;
}

}  // namespace

namespace SOFTRANK_ISA {

void add_transformer_kernels(CpuKernels& kernels) {
  fill(kernels.float_transformer);
  fill(kernels.double_transformer);
}

}  // namespace SOFTRANK_ISA
}  // namespace softrank
