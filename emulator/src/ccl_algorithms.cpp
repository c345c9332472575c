#include "ccl_algorithms.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

namespace kaitian::emulator {
namespace {

Transfer sendOf(int peer, const Flat& flat) { return {peer, true, flat.mutable_data_ptr(), flat.nbytes()}; }
Transfer receiveOf(int peer, const Flat& flat) {
  return {peer, false, flat.mutable_data_ptr(), flat.nbytes()};
}

void copyFlat(const Flat& target, const Flat& source) {
  if (source.nbytes() != 0 && target.data_ptr() != source.data_ptr()) {
    std::memmove(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  }
}

std::size_t at_(int rank) { return static_cast<std::size_t>(rank); }

Flats split(const Flat& tensor, int parts) {
  Flats result;
  const int64_t count = tensor.numel();
  for (int part = 0; part < parts; ++part) {
    const int64_t begin = count * part / parts;
    result.push_back(tensor.narrow(0, begin, count * (part + 1) / parts - begin));
  }
  return result;
}

Flat converted(const Flat& block, const Reduction& reduction) {
  return reduction.doubleAsFloat && block.scalar_type() == at::kDouble ? block.to(at::kFloat) : block;
}

/// The factor is each rank's own, so it is applied before anything is sent.
Flats scaled(const Flats& blocks, const Reduction& reduction) {
  if (!reduction.factor) return blocks;
  Flats result;
  for (const Flat& block : blocks) result.push_back(block.mul(*reduction.factor).to(block.scalar_type()));
  return result;
}

void fold(Flat& out, const Flat& left, const Flat& right, Reduction::Op op) {
  switch (op) {
    case Reduction::Op::sum:
    case Reduction::Op::avg:
      at::add_out(out, left, right);
      break;
    case Reduction::Op::product:
      at::mul_out(out, left, right);
      break;
    case Reduction::Op::min:
      at::minimum_out(out, left, right);
      break;
    case Reduction::Op::max:
      at::maximum_out(out, left, right);
      break;
  }
}

/// Folds in rank order into scratch: `operands` of the other ranks may be overwritten, that of `own` not.
Flat foldInOrder(Flats& operands, int own, Reduction::Op op) {
  if (operands.size() == 1) return operands[0].clone();
  Flat total = operands[own == 0 ? 1 : 0];
  fold(total, operands[0], operands[1], op);
  for (std::size_t rank = 2; rank < operands.size(); ++rank) fold(total, total, operands[rank], op);
  return total;
}

void divide(Flat& total, int by) {
  if (at::isIntegralType(total.scalar_type(), true)) {
    total.div_(by, "trunc");
  } else {
    total.div_(by);
  }
}

/// Folds block r of all members on rank r and returns it there.
Flat foldOwnBlock(const Communication& with, const Flats& unscaled, const Reduction& reduction) {
  Channel& channel = with.channel;
  const Flats blocks = scaled(unscaled, reduction);
  const Flat& own = blocks[at_(channel.rank())];
  Flats arrived(at_(channel.size()));
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < channel.size(); ++peer) {
    if (peer == channel.rank()) continue;
    arrived[at_(peer)] = at::empty_like(own);
    transfers.push_back(sendOf(peer, blocks[at_(peer)]));
    transfers.push_back(receiveOf(peer, arrived[at_(peer)]));
  }
  channel.mesh().exchange(transfers, with.deadline);
  arrived[at_(channel.rank())] = own;
  for (Flat& operand : arrived) operand = converted(operand, reduction);
  Flat total = foldInOrder(arrived, channel.rank(), reduction.op);
  if (reduction.op == Reduction::Op::avg) divide(total, channel.size());
  return total.to(own.scalar_type());
}

}  // namespace

void allGather(const Communication& with, const Flats& outputs, const Flat& input) {
  Channel& channel = with.channel;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < channel.size(); ++peer) {
    if (peer == channel.rank()) continue;
    transfers.push_back(sendOf(peer, input));
    transfers.push_back(receiveOf(peer, outputs[at_(peer)]));
  }
  channel.mesh().exchange(transfers, with.deadline);
  copyFlat(outputs[at_(channel.rank())], input);
}

void allReduce(const Communication& with, const Flat& tensor, const Reduction& reduction) {
  const Flats blocks = split(tensor, with.channel.size());
  allGather(with, blocks, foldOwnBlock(with, blocks, reduction));
}

void reduceTo(const Communication& with, int root, const Flat& tensor, const Reduction& reduction) {
  const Flats blocks = split(tensor, with.channel.size());
  gatherTo(with, root, blocks, foldOwnBlock(with, blocks, reduction));
}

void reduceScatter(const Communication& with, const Flat& output, const Flats& blocks,
                   const Reduction& reduction) {
  copyFlat(output, foldOwnBlock(with, blocks, reduction));
}

void broadcast(const Communication& with, int root, const Flat& tensor) {
  Channel& channel = with.channel;
  std::vector<Transfer> transfers;
  if (channel.rank() != root) {
    transfers.push_back(receiveOf(root, tensor));
  } else {
    for (int peer = 0; peer < channel.size(); ++peer) {
      if (peer != root) transfers.push_back(sendOf(peer, tensor));
    }
  }
  channel.mesh().exchange(transfers, with.deadline);
}

void gatherTo(const Communication& with, int root, const Flats& outputs, const Flat& input) {
  Channel& channel = with.channel;
  std::vector<Transfer> transfers;
  if (channel.rank() != root) {
    transfers.push_back(sendOf(root, input));
  } else {
    for (int peer = 0; peer < channel.size(); ++peer) {
      if (peer != root) transfers.push_back(receiveOf(peer, outputs[at_(peer)]));
    }
    copyFlat(outputs[at_(root)], input);
  }
  channel.mesh().exchange(transfers, with.deadline);
}

void scatterFrom(const Communication& with, int root, const Flat& output, const Flats& inputs) {
  Channel& channel = with.channel;
  std::vector<Transfer> transfers;
  if (channel.rank() != root) {
    transfers.push_back(receiveOf(root, output));
  } else {
    for (int peer = 0; peer < channel.size(); ++peer) {
      if (peer != root) transfers.push_back(sendOf(peer, inputs[at_(peer)]));
    }
    copyFlat(output, inputs[at_(root)]);
  }
  channel.mesh().exchange(transfers, with.deadline);
}

void allToAll(const Communication& with, const Flats& outputs, const Flats& inputs) {
  Channel& channel = with.channel;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < channel.size(); ++peer) {
    if (peer == channel.rank()) continue;
    transfers.push_back(sendOf(peer, inputs[at_(peer)]));
    transfers.push_back(receiveOf(peer, outputs[at_(peer)]));
  }
  channel.mesh().exchange(transfers, with.deadline);
  TORCH_CHECK(outputs[at_(channel.rank())].nbytes() == inputs[at_(channel.rank())].nbytes(),
              "what this rank sends itself and what it receives have different sizes");
  copyFlat(outputs[at_(channel.rank())], inputs[at_(channel.rank())]);
}

}  // namespace kaitian::emulator
