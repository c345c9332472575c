// Every collective of c10d, as a plan::Collective with its tensors. What each must do: docs/collectives.md.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include <numeric>

#include "torch/backend.h"

namespace kaitian::shim {
namespace {

using plan::Kind;

[[noreturn]] void refuse(const std::string& message) {
  std::rethrow_exception(exceptionOf({Code::invalidArgument, message}));
}

std::uint64_t bytesOf(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const at::Tensor& t) { return sum + t.nbytes(); });
}

std::string sizesOf(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

bool sameType(const Tensors& a, const Tensors& b) {
  const auto type = !a.empty() ? a[0].scalar_type() : b.empty() ? at::kByte : b[0].scalar_type();
  const auto equal = [type](const at::Tensor& t) { return t.scalar_type() == type; };
  return std::all_of(a.begin(), a.end(), equal) && std::all_of(b.begin(), b.end(), equal);
}

void expectCount(const char* name, const char* argument, std::size_t found, std::size_t expected) {
  if (found != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected " + std::to_string(expected) +
           " tensors, found " + std::to_string(found));
}

void expectNumel(const char* name, const std::string& argument, const at::Tensor& tensor,
                 std::int64_t expected) {
  if (tensor.numel() != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected " + std::to_string(expected) +
           " elements, found " + std::to_string(tensor.numel()) + " (sizes " + sizesOf(tensor) + ")");
}

void expectType(const char* name, const std::string& argument, const at::Tensor& tensor,
                at::ScalarType expected) {
  if (tensor.scalar_type() != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected dtype " + c10::str(expected) +
           ", found " + c10::str(tensor.scalar_type()));
}

void expectTypes(const char* name, const char* argument, const Tensors& tensors, at::ScalarType expected) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].scalar_type() != expected)
      expectType(name, argument + (" " + std::to_string(i)), tensors[i], expected);
}

/// A reduction's tensors have one dtype; movement of several dtypes goes by bytes.
void checkTypes(const char* name, const Tensors& inputs, const Tensors& outputs, const c10d::ReduceOp* op) {
  if (op == nullptr) {
    if (inputs.empty()) return;
    for (std::size_t i = 0; i < std::min(inputs.size(), outputs.size()); ++i)
      expectType(name, "output tensor " + std::to_string(i), outputs[i], inputs[i].scalar_type());
    return;
  }
  const at::ScalarType type = (inputs.empty() ? outputs : inputs)[0].scalar_type();
  expectTypes(name, "input tensor", inputs, type);
  expectTypes(name, "output tensor", outputs, type);
  const ReduceOp core = reduceOpOf(*op);
  if (!isDefined(core, dtypeOf(type)))
    refuse(std::string(name) + ": argument op: " + toString(core) + " is not defined for " + c10::str(type));
}

/// One policy for tensors that are not contiguous: inputs are copied to contiguous ones first, outputs are
/// produced in contiguous ones and written back to the strides that the caller gave.
struct Dense {
  Tensors inputs, outputs;
  std::vector<std::pair<at::Tensor, at::Tensor>> back;  // (given, dense)

  static bool plain(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

  Dense(const Tensors& in, const Tensors& out, bool inPlace) {
    at::NoGradGuard noGrad;
    at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& t : in) inputs.push_back(plain(t) ? t : fresh(t).copy_(t));
    for (const auto& t : out) {
      if (plain(t)) {
        outputs.push_back(t);
        continue;
      }
      at::Tensor dense = fresh(t);
      if (inPlace) dense.copy_(t);
      back.emplace_back(t, dense);
      outputs.push_back(std::move(dense));
    }
  }

  static at::Tensor fresh(const at::Tensor& t) {
    return at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  }

  std::function<void()> writeBack() const {
    if (back.empty()) return nullptr;
    return [pairs = back] {
      at::NoGradGuard noGrad;
      at::AutoDispatchBelowADInplaceOrView below;
      for (const auto& [given, dense] : pairs) given.copy_(dense, /*non_blocking=*/true);
    };
  }
};

bool inPlaceKind(Kind kind) {
  return kind == Kind::allReduce || kind == Kind::broadcast || kind == Kind::reduce;
}

std::vector<relay::Buffer> buffersOf(const Tensors& tensors, bool asBytes) {
  std::vector<relay::Buffer> buffers;
  for (const auto& t : tensors) {
    const auto count = asBytes ? static_cast<std::int64_t>(t.nbytes()) : t.numel();
    buffers.push_back({t.numel() == 0 ? nullptr : static_cast<std::byte*>(t.data_ptr()), count});
  }
  return buffers;
}

}  // namespace

WorkRef Backend::run(Call call) {
  checkUsable();
  const std::string name = plan::toString(call.collective.kind);
  const bool onDevice = checkDevices(name.c_str(), call.inputs, call.outputs);
  checkTypes(name.c_str(), call.inputs, call.outputs, call.op);
  auto& collective = call.collective;
  const at::ScalarType type = !call.inputs.empty()    ? call.inputs[0].scalar_type()
                              : !call.outputs.empty() ? call.outputs[0].scalar_type()
                                                      : at::kByte;
  // Movement of a type that the core does not know, or of several types in one call, is movement of bytes.
  const bool asBytes =
      call.op == nullptr && (!sameType(call.inputs, call.outputs) || dtypeOf(type) == DType::bytes);
  collective.dtype = asBytes ? DType::bytes : dtypeOf(type);
  Scale scale;
  if (call.op != nullptr) {
    collective.op = reduceOpOf(*call.op);
    scale = scaleOf(*call.op, type);
  }
  if (asBytes && call.bytesOf) call.bytesOf(call);

  Dense dense(call.inputs, call.outputs, inPlaceKind(collective.kind));
  if (passes(call, onDevice)) return passThrough(call, dense.inputs, dense.outputs, dense.writeBack());

  relay::Request request;
  request.collective = collective;
  request.inputs = buffersOf(dense.inputs, asBytes);
  request.outputs = buffersOf(dense.outputs, asBytes);
  request.sends = std::move(call.sends);
  request.receives = std::move(call.receives);
  request.scale = scale;
  request.onDevice = onDevice;
  // Reads of inputs and writes of outputs come after what the caller has enqueued on its current stream.
  if (onDevice) request.after = std::make_shared<TorchEvent>(device_->currentStream());
  request.timeout = timeoutOr(call.timeout);
  Tensors used = dense.inputs;
  used.insert(used.end(), dense.outputs.begin(), dense.outputs.end());
  request.keepAlive = keep(std::move(used));

  OperationWork::Config work;
  work.rank = getRank();
  work.type = call.type;
  work.title = "kaitian:" + name;
  work.inputs = call.inputs.empty() ? call.outputs : call.inputs;
  work.outputs = call.outputs;
  if (onDevice) work.device = device_;
  work.writeBack = dense.writeBack();
  work.counters = counters_;
  work.bytes = std::max(bytesOf(call.inputs), bytesOf(call.outputs));
  return submit(std::move(work), std::move(request));
}

WorkRef Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  checkRank("broadcast", "src", options.rootRank);
  expectCount("broadcast", "tensor", tensors.size(), 1);
  Call call;
  call.type = c10d::OpType::BROADCAST;
  call.collective.kind = Kind::broadcast;
  call.collective.root = static_cast<int>(options.rootRank);
  call.collective.counts = {tensors[0].numel()};
  call.outputs = tensors;
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) { c.collective.counts = {static_cast<std::int64_t>(c.outputs[0].nbytes())}; };
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) {
    return child.broadcast(out, options);
  };
  return run(std::move(call));
}

WorkRef Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  c10d::AllreduceCoalescedOptions all;
  static_cast<c10d::AllreduceOptions&>(all) = options;
  expectCount("all_reduce", "tensor", tensors.size(), 1);
  return reduceAll(tensors, all, c10d::OpType::ALLREDUCE);
}

WorkRef Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return reduceAll(tensors, options, c10d::OpType::ALLREDUCE_COALESCED);
}

WorkRef Backend::reduceAll(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options,
                           c10d::OpType type) {
  if (tensors.empty()) refuse("all_reduce: argument tensors: expected at least one tensor, found none");
  Call call;
  call.type = type;
  call.collective.kind = Kind::allReduce;
  for (const auto& t : tensors) call.collective.counts.push_back(t.numel());
  call.outputs = tensors;
  call.op = &options.reduceOp;
  call.timeout = options.timeout;
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) {
    return out.size() == 1 ? child.allreduce(out, options) : child.allreduce_coalesced(out, options);
  };
  return run(std::move(call));
}

WorkRef Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  checkRank("reduce", "dst", options.rootRank);
  expectCount("reduce", "tensor", tensors.size(), 1);
  Call call;
  call.type = c10d::OpType::REDUCE;
  call.collective.kind = Kind::reduce;
  call.collective.root = static_cast<int>(options.rootRank);
  call.collective.counts = {tensors[0].numel()};
  call.outputs = tensors;
  call.op = &options.reduceOp;
  call.timeout = options.timeout;
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) { return child.reduce(out, options); };
  return run(std::move(call));
}

WorkRef Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) {
  expectCount("all_gather", "tensor", inputs.size(), 1);
  expectCount("all_gather", "tensor_list", outputs.size(), 1);
  expectCount("all_gather", "tensor_list", outputs[0].size(), static_cast<std::size_t>(getSize()));
  expectNumel("all_gather", "tensor_list[" + std::to_string(getRank()) + "]",
              outputs[0][static_cast<std::size_t>(getRank())], inputs[0].numel());
  for (std::size_t r = 0; r < outputs[0].size(); ++r)
    expectType("all_gather", "tensor_list[" + std::to_string(r) + "]", outputs[0][r],
               inputs[0].scalar_type());
  Call call;
  call.type = c10d::OpType::ALLGATHER;
  call.collective.kind = Kind::allGather;
  call.collective.lists = true;
  for (const auto& t : outputs[0]) call.collective.counts.push_back(t.numel());
  call.inputs = inputs;
  call.outputs = outputs[0];
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (std::size_t i = 0; i < c.outputs.size(); ++i)
      c.collective.counts[i] = static_cast<std::int64_t>(c.outputs[i].nbytes());
  };
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    std::vector<Tensors> lists{out};
    return child.allgather(lists, in, options);
  };
  return run(std::move(call));
}

WorkRef Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return gatherAll("all_gather_into_tensor", outputs, inputs, options, c10d::OpType::_ALLGATHER_BASE);
}

WorkRef Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  return gatherAll("all_gather_into_tensor_coalesced", outputs, inputs, options, c10d::OpType::COALESCED);
}

WorkRef Backend::gatherAll(const char* name, Tensors& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options, c10d::OpType type) {
  expectCount(name, "outputs", outputs.size(), inputs.size());
  Call call;
  call.type = type;
  call.collective.kind = Kind::allGather;
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    expectNumel(name, "output tensor " + std::to_string(t), outputs[t], inputs[t].numel() * getSize());
    call.collective.counts.insert(call.collective.counts.end(), static_cast<std::size_t>(getSize()),
                                  inputs[t].numel());
  }
  call.inputs = inputs;
  call.outputs = outputs;
  call.timeout = options.timeout;
  call.bytesOf = [size = static_cast<std::size_t>(getSize())](Call& c) {
    for (std::size_t i = 0; i < c.collective.counts.size(); ++i)
      c.collective.counts[i] = static_cast<std::int64_t>(c.inputs[i / size].nbytes());
  };
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    return in.size() == 1 ? child._allgather_base(out[0], in[0], options)
                          : child.allgather_into_tensor_coalesced(out, in, options);
  };
  return run(std::move(call));
}

WorkRef Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  expectCount("all_gather_coalesced", "output_tensor_lists", outputs.size(),
              static_cast<std::size_t>(getSize()));
  Call call;
  call.type = c10d::OpType::ALLGATHER_COALESCED;
  call.collective.kind = Kind::allGather;
  call.collective.lists = true;
  call.inputs = inputs;
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      const std::string which = "output_tensor_lists[" + std::to_string(r) + "]";
      expectCount("all_gather_coalesced", which.c_str(), outputs[r].size(), inputs.size());
      expectNumel("all_gather_coalesced", which + "[" + std::to_string(t) + "]", outputs[r][t],
                  inputs[t].numel());
      expectType("all_gather_coalesced", which + "[" + std::to_string(t) + "]", outputs[r][t],
                 inputs[t].scalar_type());
      call.collective.counts.push_back(outputs[r][t].numel());
      call.outputs.push_back(outputs[r][t]);
    }
  }
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (std::size_t i = 0; i < c.outputs.size(); ++i)
      c.collective.counts[i] = static_cast<std::int64_t>(c.outputs[i].nbytes());
  };
  return run(std::move(call));
}

WorkRef Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  checkRank("gather", "dst", options.rootRank);
  expectCount("gather", "tensor", inputs.size(), 1);
  const bool root = options.rootRank == getRank();
  if (!root && !outputs.empty() && !outputs[0].empty())
    refuse("gather: argument gather_list: expected none on rank " + std::to_string(getRank()) +
           ", which is not the destination, found " + std::to_string(outputs[0].size()) + " tensors");
  Call call;
  if (root) {
    expectCount("gather", "gather_list", outputs.size(), 1);
    expectCount("gather", "gather_list", outputs[0].size(), static_cast<std::size_t>(getSize()));
    for (std::size_t r = 0; r < outputs[0].size(); ++r) {
      expectNumel("gather", "gather_list[" + std::to_string(r) + "]", outputs[0][r], inputs[0].numel());
      expectType("gather", "gather_list[" + std::to_string(r) + "]", outputs[0][r], inputs[0].scalar_type());
    }
    call.outputs = outputs[0];
  }
  call.type = c10d::OpType::GATHER;
  call.collective.kind = Kind::gather;
  call.collective.lists = true;
  call.collective.root = static_cast<int>(options.rootRank);
  call.collective.counts.assign(static_cast<std::size_t>(getSize()), inputs[0].numel());
  call.inputs = inputs;
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (auto& count : c.collective.counts) count = static_cast<std::int64_t>(c.inputs[0].nbytes());
  };
  call.whole = [options, root](c10d::Backend& child, Tensors& in, Tensors& out) {
    std::vector<Tensors> lists;
    if (root) lists.push_back(out);
    return child.gather(lists, in, options);
  };
  return run(std::move(call));
}

WorkRef Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ScatterOptions& options) {
  checkRank("scatter", "src", options.rootRank);
  expectCount("scatter", "tensor", outputs.size(), 1);
  const bool root = options.rootRank == getRank();
  if (!root && !inputs.empty() && !inputs[0].empty())
    refuse("scatter: argument scatter_list: expected none on rank " + std::to_string(getRank()) +
           ", which is not the source, found " + std::to_string(inputs[0].size()) + " tensors");
  Call call;
  if (root) {
    expectCount("scatter", "scatter_list", inputs.size(), 1);
    expectCount("scatter", "scatter_list", inputs[0].size(), static_cast<std::size_t>(getSize()));
    for (std::size_t r = 0; r < inputs[0].size(); ++r) {
      expectNumel("scatter", "scatter_list[" + std::to_string(r) + "]", inputs[0][r], outputs[0].numel());
      expectType("scatter", "scatter_list[" + std::to_string(r) + "]", inputs[0][r],
                 outputs[0].scalar_type());
    }
    call.inputs = inputs[0];
  }
  call.type = c10d::OpType::SCATTER;
  call.collective.kind = Kind::scatter;
  call.collective.lists = true;
  call.collective.root = static_cast<int>(options.rootRank);
  call.collective.counts.assign(static_cast<std::size_t>(getSize()), outputs[0].numel());
  call.outputs = outputs;
  call.timeout = options.timeout;
  call.bytesOf = [](Call& c) {
    for (auto& count : c.collective.counts) count = static_cast<std::int64_t>(c.outputs[0].nbytes());
  };
  call.whole = [options, root](c10d::Backend& child, Tensors& in, Tensors& out) {
    std::vector<Tensors> lists;
    if (root) lists.push_back(in);
    return child.scatter(out, lists, options);
  };
  return run(std::move(call));
}

WorkRef Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                const c10d::ReduceScatterOptions& options) {
  expectCount("reduce_scatter", "output", outputs.size(), 1);
  expectCount("reduce_scatter", "input_list", inputs.size(), 1);
  expectCount("reduce_scatter", "input_list", inputs[0].size(), static_cast<std::size_t>(getSize()));
  expectNumel("reduce_scatter", "input_list[" + std::to_string(getRank()) + "]",
              inputs[0][static_cast<std::size_t>(getRank())], outputs[0].numel());
  Call call;
  call.type = c10d::OpType::REDUCE_SCATTER;
  call.collective.kind = Kind::reduceScatter;
  call.collective.lists = true;
  for (const auto& t : inputs[0]) call.collective.counts.push_back(t.numel());
  call.inputs = inputs[0];
  call.outputs = outputs;
  call.op = &options.reduceOp;
  call.timeout = options.timeout;
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    std::vector<Tensors> lists{in};
    return child.reduce_scatter(out, lists, options);
  };
  return run(std::move(call));
}

WorkRef Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return scatterReduced("reduce_scatter_tensor", outputs, inputs, options,
                        c10d::OpType::_REDUCE_SCATTER_BASE);
}

WorkRef Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  return scatterReduced("reduce_scatter_tensor_coalesced", outputs, inputs, options, c10d::OpType::COALESCED);
}

WorkRef Backend::scatterReduced(const char* name, Tensors& outputs, Tensors& inputs,
                                const c10d::ReduceScatterOptions& options, c10d::OpType type) {
  if (inputs.empty())
    refuse(std::string(name) + ": argument inputs: expected at least one tensor, found none");
  expectCount(name, "outputs", outputs.size(), inputs.size());
  Call call;
  call.type = type;
  call.collective.kind = Kind::reduceScatter;
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    expectNumel(name, "input tensor " + std::to_string(t), inputs[t], outputs[t].numel() * getSize());
    call.collective.counts.insert(call.collective.counts.end(), static_cast<std::size_t>(getSize()),
                                  outputs[t].numel());
  }
  call.inputs = inputs;
  call.outputs = outputs;
  call.op = &options.reduceOp;
  call.timeout = options.timeout;
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    return in.size() == 1 ? child._reduce_scatter_base(out[0], in[0], options)
                          : child.reduce_scatter_tensor_coalesced(out, in, options);
  };
  return run(std::move(call));
}

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
  Call call;
  call.type = c10d::OpType::ALLTOALL_BASE;
  call.collective.kind = Kind::allToAll;
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
  expectCount("all_to_all", "input_tensor_list", inputs.size(), static_cast<std::size_t>(getSize()));
  expectCount("all_to_all", "output_tensor_list", outputs.size(), static_cast<std::size_t>(getSize()));
  Call call;
  call.type = c10d::OpType::ALLTOALL;
  call.collective.kind = Kind::allToAll;
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

WorkRef Backend::barrier(const c10d::BarrierOptions& options) {
  // Ranks may enter through different dispatch keys, so a barrier never looks at devices.
  Call call;
  call.type = c10d::OpType::BARRIER;
  call.collective.kind = Kind::barrier;
  call.timeout = options.timeout;
  return run(std::move(call));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*waitAllRanks*/) {
  // The deadline's error names every rank that has not come, whether or not all are to be collected.
  barrier(options)->wait();
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
  Dense dense(send ? tensors : Tensors{}, send ? Tensors{} : tensors, false);
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
  checkRank("send", "dst", peer);
  return message("send", c10d::OpType::SEND, tensors, peer, tag, true);
}

WorkRef Backend::recv(Tensors& tensors, int peer, int tag) {
  checkRank("recv", "src", peer);
  return message("recv", c10d::OpType::RECV, tensors, peer, tag, false);
}

WorkRef Backend::recvAnysource(Tensors& tensors, int tag) {
  return message("recv", c10d::OpType::RECVANYSOURCE, tensors, host::HostGroup::kAnySource, tag, false);
}

}  // namespace kaitian::shim
