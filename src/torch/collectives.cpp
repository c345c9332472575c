// The collectives of c10d, each as a plan::Collective with its tensors: docs/collectives.md.
#include "torch/backend.h"
#include "torch/tensors.h"

namespace kaitian::shim {

using plan::Kind;

WorkRef Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const DropsBatch guard(*this);
  checkRank("broadcast", "src", options.rootRank);
  expectCount("broadcast", "tensor", tensors.size(), 1);
  Call call;
  call.type = c10d::OpType::BROADCAST;
  call.collective.kind = Kind::broadcast;
  call.collective.root = static_cast<int>(options.rootRank);
  call.collective.counts = {tensors[0].numel()};
  call.outputs = tensors;
  call.timeout = options.timeout;
  call.waits = !options.asyncOp;
  call.bytesOf = [](Call& c) { c.collective.counts = {static_cast<std::int64_t>(c.outputs[0].nbytes())}; };
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) {
    return child.broadcast(out, options);
  };
  return run(std::move(call));
}

WorkRef Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const DropsBatch guard(*this);
  c10d::AllreduceCoalescedOptions all;
  static_cast<c10d::AllreduceOptions&>(all) = options;
  expectCount("all_reduce", "tensor", tensors.size(), 1);
  return reduceAll(tensors, all, c10d::OpType::ALLREDUCE);
}

WorkRef Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const DropsBatch guard(*this);
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
  call.waits = !options.asyncOp;
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) {
    return out.size() == 1 ? child.allreduce(out, options) : child.allreduce_coalesced(out, options);
  };
  return run(std::move(call));
}

WorkRef Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const DropsBatch guard(*this);
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
  call.waits = !options.asyncOp;
  call.whole = [options](c10d::Backend& child, Tensors&, Tensors& out) { return child.reduce(out, options); };
  return run(std::move(call));
}

WorkRef Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) {
  const DropsBatch guard(*this);
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
  call.waits = !options.asyncOp;
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
  const DropsBatch guard(*this);
  Tensors outputs{output}, inputs{input};
  return gatherAll("all_gather_into_tensor", outputs, inputs, options, c10d::OpType::_ALLGATHER_BASE);
}

WorkRef Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  const DropsBatch guard(*this);
  return gatherAll("all_gather_into_tensor_coalesced", outputs, inputs, options, c10d::OpType::COALESCED);
}

WorkRef Backend::gatherAll(const char* name, Tensors& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options, c10d::OpType type) {
  expectCount(name, "outputs", outputs.size(), inputs.size());
  Call call;
  call.name = name;
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
  call.waits = !options.asyncOp;
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
  const DropsBatch guard(*this);
  expectCount("all_gather_coalesced", "output_tensor_lists", outputs.size(),
              static_cast<std::size_t>(getSize()));
  Call call;
  call.name = "all_gather_coalesced";
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
  call.waits = !options.asyncOp;
  call.bytesOf = [](Call& c) {
    for (std::size_t i = 0; i < c.outputs.size(); ++i)
      c.collective.counts[i] = static_cast<std::int64_t>(c.outputs[i].nbytes());
  };
  return run(std::move(call));
}

WorkRef Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const DropsBatch guard(*this);
  checkRank("gather", "dst", options.rootRank);
  expectCount("gather", "tensor", inputs.size(), 1);
  const bool root = options.rootRank == getRank();
  if (!root && !outputs.empty() && !outputs[0].empty())
    refuse("gather: argument gather_list: expected none on rank " + std::to_string(globalRank()) +
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
  call.waits = !options.asyncOp;
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
  const DropsBatch guard(*this);
  checkRank("scatter", "src", options.rootRank);
  expectCount("scatter", "tensor", outputs.size(), 1);
  const bool root = options.rootRank == getRank();
  if (!root && !inputs.empty() && !inputs[0].empty())
    refuse("scatter: argument scatter_list: expected none on rank " + std::to_string(globalRank()) +
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
  call.waits = !options.asyncOp;
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
  const DropsBatch guard(*this);
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
  call.waits = !options.asyncOp;
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    std::vector<Tensors> lists{in};
    return child.reduce_scatter(out, lists, options);
  };
  return run(std::move(call));
}

WorkRef Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::ReduceScatterOptions& options) {
  const DropsBatch guard(*this);
  Tensors outputs{output}, inputs{input};
  return scatterReduced("reduce_scatter_tensor", outputs, inputs, options,
                        c10d::OpType::_REDUCE_SCATTER_BASE);
}

WorkRef Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  const DropsBatch guard(*this);
  return scatterReduced("reduce_scatter_tensor_coalesced", outputs, inputs, options, c10d::OpType::COALESCED);
}

WorkRef Backend::scatterReduced(const char* name, Tensors& outputs, Tensors& inputs,
                                const c10d::ReduceScatterOptions& options, c10d::OpType type) {
  if (inputs.empty())
    refuse(std::string(name) + ": argument inputs: expected at least one tensor, found none");
  expectCount(name, "outputs", outputs.size(), inputs.size());
  Call call;
  call.name = name;
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
  call.waits = !options.asyncOp;
  call.whole = [options](c10d::Backend& child, Tensors& in, Tensors& out) {
    return in.size() == 1 ? child._reduce_scatter_base(out[0], in[0], options)
                          : child.reduce_scatter_tensor_coalesced(out, in, options);
  };
  return run(std::move(call));
}

WorkRef Backend::barrier(const c10d::BarrierOptions& options) {
  const DropsBatch guard(*this);
  // Ranks may enter through different dispatch keys, so a barrier never looks at devices.
  Call call;
  call.type = c10d::OpType::BARRIER;
  call.collective.kind = Kind::barrier;
  call.timeout = options.timeout;
  call.waits = !options.asyncOp;
  return run(std::move(call));
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*waitAllRanks*/) {
  // The deadline's error names every rank that has not come, whether or not all are to be collected.
  barrier(options)->wait();
}

}  // namespace kaitian::shim
