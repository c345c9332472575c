// Calls in which every pair of ranks has data of its own: all-to-all and point-to-point.
#include "torch/backend.h"
#include "torch/overlap.h"
#include "torch/tensors.h"

namespace kaitian::shim {
namespace {

/// Elements of each part of a tensor that is split along its first dimension; equal parts if `splits` is
/// empty.
std::vector<std::int64_t> rowOf(const char* argument, const at::Tensor& tensor,
                                const std::vector<std::int64_t>& splits, int worldSize) {
  const std::int64_t length = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::string name = std::string("all_to_all_single: argument ") + argument;
  if (splits.empty()) {
    if (length % worldSize != 0)
      refuse(name + ": expected a first dimension that " + std::to_string(worldSize) +
             " ranks divide, found " + std::to_string(length));
    return std::vector<std::int64_t>(static_cast<std::size_t>(worldSize), tensor.numel() / worldSize);
  }
  if (splits.size() != static_cast<std::size_t>(worldSize))
    refuse(name + ": expected " + std::to_string(worldSize) + " sizes, found " +
           std::to_string(splits.size()));
  std::int64_t sum = 0;
  for (const auto size : splits) {
    if (size < 0) refuse(name + ": expected sizes >= 0, found " + std::to_string(size));
    sum += size;
  }
  if (sum != length)
    refuse(name + ": expected sizes that sum up to the first dimension " + std::to_string(length) +
           ", found " + std::to_string(sum));
  const std::int64_t width = length == 0 ? 0 : tensor.numel() / length;
  std::vector<std::int64_t> row;
  for (const auto size : splits) row.push_back(size * width);
  return row;
}

}  // namespace

WorkRef Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                               std::vector<std::int64_t>& inputSplits, const c10d::AllToAllOptions& options) {
  const DropsBatch guard(*this);
  Call call;
  call.name = "all_to_all_single";
  call.type = c10d::OpType::ALLTOALL_BASE;
  call.collective.kind = plan::Kind::allToAll;
  call.sends = rowOf("input_split_sizes", input, inputSplits, getSize());
  call.receives = rowOf("output_split_sizes", output, outputSplits, getSize());
  expectType("all_to_all_single", "output", output, input.scalar_type());
  call.inputs = {input};
  call.outputs = {output};
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (auto& n : c.sends) n *= static_cast<std::int64_t>(c.inputs[0].element_size());
    for (auto& n : c.receives) n *= static_cast<std::int64_t>(c.inputs[0].element_size());
  };
  call.unequal = !inputSplits.empty() || !outputSplits.empty();
  call.whole = [options, outputSplits, inputSplits](c10d::Backend& child, Tensors& in, Tensors& out) mutable {
    return child.alltoall_base(out[0], in[0], outputSplits, inputSplits, options);
  };
  return run(std::move(call));
}

WorkRef Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const DropsBatch guard(*this);
  expectCount("all_to_all", "input_tensor_list", inputs.size(), static_cast<std::size_t>(getSize()));
  expectCount("all_to_all", "output_tensor_list", outputs.size(), static_cast<std::size_t>(getSize()));
  Call call;
  call.type = c10d::OpType::ALLTOALL;
  call.collective.kind = plan::Kind::allToAll;
  call.collective.lists = true;
  for (const auto& t : inputs) call.sends.push_back(t.numel());
  for (const auto& t : outputs) call.receives.push_back(t.numel());
  call.inputs = inputs;
  call.outputs = outputs;
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      c.sends[i] = static_cast<std::int64_t>(c.inputs[i].nbytes());
      c.receives[i] = static_cast<std::int64_t>(c.outputs[i].nbytes());
    }
  };
  call.unequal = true;
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    return child.alltoall(out, in, options);
  };
  return run(std::move(call));
}

WorkRef Backend::message(const char* name, c10d::OpType type, Tensors& tensors, int peer, int tag,
                         bool send) {
  checkUsable();
  expectCount(name, "tensor", tensors.size(), 1);
  if (tag < 0) refuse(std::string(name) + ": argument tag: expected >= 0, found " + std::to_string(tag));
  const bool onDevice = send ? checkDevices(name, tensors, {}) : checkDevices(name, {}, tensors);
  if (peer == host::HostGroup::kAnySource && onDevice)
    refuse(std::string(name) +
           " from any source serves CPU tensors only: the sender's device decides the path of a device "
           "tensor. hint: name the source, or receive on the CPU");
  if (!send) checkOutputs(name, tensors);
  Dense dense(send ? tensors : Tensors{}, send ? Tensors{} : tensors, false, {});
  const auto& used = send ? dense.inputs : dense.outputs;

  relay::MessageRequest request;
  request.send = send;
  request.peer = peer;
  request.tag = static_cast<std::uint32_t>(tag);
  request.buffer = buffersOf(used, true)[0];
  request.onDevice = onDevice;
  if (onDevice) request.after = std::make_shared<TorchEvent>(device_->currentStream());
  request.timeout = timeoutOr(c10d::kUnsetTimeout);
  request.keepAlive = keep(used);

  OperationWork::Config config;
  config.rank = getRank();
  config.type = type;
  config.title = std::string("kaitian:") + name;
  config.inputs = tensors;
  if (!send) config.outputs = tensors;
  if (onDevice) config.device = device_;
  config.writeBack = dense.writeBack();
  config.counters = counters_;
  config.bytes = bytesOf(tensors);
  auto work = c10::make_intrusive<OperationWork>(std::move(config));
  request.done = [work] { work->finished(); };
  work->attach(group_->submit(std::move(request)));
  return deliver(work);
}

WorkRef Backend::send(Tensors& tensors, int peer, int tag) {
  const DropsBatch guard(*this);
  checkRank("send", "dst", peer);
  return message("send", c10d::OpType::SEND, tensors, peer, tag, true);
}

WorkRef Backend::recv(Tensors& tensors, int peer, int tag) {
  const DropsBatch guard(*this);
  checkRank("recv", "src", peer);
  return message("recv", c10d::OpType::RECV, tensors, peer, tag, false);
}

WorkRef Backend::recvAnysource(Tensors& tensors, int tag) {
  const DropsBatch guard(*this);
  return message("recv", c10d::OpType::RECVANYSOURCE, tensors, host::HostGroup::kAnySource, tag, false);
}

}  // namespace kaitian::shim
