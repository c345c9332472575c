// The data movement and arithmetic of the vendor libraries, on host memory. Runs on stream threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "channel.h"

namespace kaitian::emulator {

/// How values are folded. Folds go in rank order, so all members get the same bits.
struct Reduction {
  enum class Op { sum, avg, product, min, max };
  Op op = Op::sum;
  std::optional<double> factor;  // every contribution is multiplied by it first
  bool doubleAsFloat = false;    // computes float64 in float32: a library that claims too much
};

/// One-dimensional CPU tensors over the memory of a call.
using Flat = at::Tensor;
using Flats = std::vector<Flat>;

struct Communication {
  Channel& channel;
  Deadline deadline;
};

void allReduce(const Communication& with, const Flat& tensor, const Reduction& reduction);
/// The result is in `tensor` of `root`; the others' stay as they are.
void reduceTo(const Communication& with, int root, const Flat& tensor, const Reduction& reduction);
/// `blocks[rank]` of all members are folded into `output` of `rank`.
void reduceScatter(const Communication& with, const Flat& output, const Flats& blocks,
                   const Reduction& reduction);
void broadcast(const Communication& with, int root, const Flat& tensor);
/// `input` of rank r goes to `outputs[r]` of all members.
void allGather(const Communication& with, const Flats& outputs, const Flat& input);
/// `outputs` matters on the root only, as `inputs` below.
void gatherTo(const Communication& with, int root, const Flats& outputs, const Flat& input);
void scatterFrom(const Communication& with, int root, const Flat& output, const Flats& inputs);
/// `inputs[r]` goes to rank r, which has it in `outputs[this rank]`.
void allToAll(const Communication& with, const Flats& outputs, const Flats& inputs);

}  // namespace kaitian::emulator
