// Memory that the tensors of one call share.
#pragma once

#include "kaitian/plan/plan.h"
#include "torch/values.h"

namespace kaitian::shim {

/// Throws ValueError for outputs that share memory with each other or with themselves: what it holds at the
/// end would be left to chance.
void checkOutputs(const char* name, const Tensors& outputs);

/// [input] whether it must be copied first, since outputs are written where it lies; empty: none. A rank's
/// own part of a gather or scatter may be the same memory in both, as with NCCL.
std::vector<bool> sharedInputs(const plan::Collective& collective, int rank, int size, const Tensors& inputs,
                               const Tensors& outputs);

}  // namespace kaitian::shim
