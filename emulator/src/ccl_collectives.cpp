// Each c10d collective as a call: what must agree, which memory it touches, what it does.
#include <ATen/ATen.h>

#include <utility>

#include "ccl.h"
#include "fallback.h"
#include "guard.h"

namespace kaitian::emulator {
namespace {

std::string describeCall(const char* what, const at::Tensor& tensor, const std::string& detail = {}) {
  return c10::str(what, detail.empty() ? "" : " ", detail, " ", c10::toString(tensor.scalar_type()), ", ",
                  tensor.numel(), " elements");
}

const char* nameOf(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < c10d::ReduceOp::UNUSED ? kNames[op] : "UNUSED";
}

std::vector<std::int64_t> countsOf(const Flats& parts) {
  std::vector<std::int64_t> counts;
  for (const Flat& part : parts) counts.push_back(part.numel());
  return counts;
}

/// The one tensor of a call of the time when one process drove several devices.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK(tensors.size() == 1, what, ": expected one tensor, found ", tensors.size());
  return tensors[0];
}

const std::vector<at::Tensor>& onlyList(const std::vector<std::vector<at::Tensor>>& lists, int size,
                                        const char* what) {
  TORCH_CHECK(lists.size() == 1, what, ": expected one list of tensors, found ", lists.size());
  TORCH_CHECK(lists[0].size() == static_cast<std::size_t>(size), what, ": expected a tensor for each of ",
              size, " ranks, found ", lists[0].size());
  return lists[0];
}

double factorOf(const c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, "PREMUL_SUM has no factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

}  // namespace

Flat Ccl::flat(const at::Tensor& tensor, Call& call) const {
  TORCH_CHECK(onDevice(tensor), library_.name, ": expected a tensor on ", device(), ", found one on ",
              tensor.defined() ? tensor.device().str() : "no device");
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), library_.name, ": tensors must be contiguous");
  call.tensors.push_back(tensor);
  void* memory = tensor.numel() == 0 ? nullptr : toHost(tensor.mutable_data_ptr());
  return at::for_blob(memory, {tensor.numel()})
      .options(at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
      .make_tensor();
}

Flats Ccl::flats(const Tensors& tensors, Call& call) const {
  Flats result;
  for (const at::Tensor& tensor : tensors) result.push_back(flat(tensor, call));
  return result;
}

/// A tensor as one equal block per rank.
Flats Ccl::blocks(const at::Tensor& tensor, Call& call) const {
  const int64_t count = tensor.numel();
  TORCH_CHECK(count % size_ == 0, library_.name, ": ", count, " elements cannot be split among ", size_,
              " ranks");
  return splits(tensor, std::vector<int64_t>(static_cast<std::size_t>(size_), count / size_), call);
}

/// A tensor as one block of the given number of elements per rank.
Flats Ccl::splits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, Call& call) const {
  const Flat all = flat(tensor, call);
  Flats result;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    result.push_back(all.narrow(0, begin, size));
    begin += size;
  }
  TORCH_CHECK(begin == all.numel(), library_.name, ": split sizes add up to ", begin, " of ", all.numel(),
              " elements");
  return result;
}

Reduction Ccl::reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) const {
  using Type = c10d::ReduceOp;
  const auto refuse = [&](const char* gap) {
    TORCH_CHECK(library_.gaps.count(gap) == 0, library_.name, " has no ", nameOf(op), " of ",
                c10::toString(tensor.scalar_type()), " (", gap, ")");
  };
  if (tensor.scalar_type() == at::kBFloat16) refuse("reduce_bfloat16");
  TORCH_CHECK(!tensor.is_complex() || op == Type::SUM || op == Type::AVG, library_.name, ": ", nameOf(op),
              " is not defined for complex numbers");
  Reduction result;
  result.doubleAsFloat = library_.doubleAsFloat;
  switch (static_cast<Type::RedOpType>(op)) {
    case Type::SUM:
      break;
    case Type::AVG:
      refuse("avg");
      result.op = Reduction::Op::avg;
      break;
    case Type::PREMUL_SUM:
      refuse("premul_sum");
      result.factor = factorOf(op);
      break;
    case Type::PRODUCT:
      result.op = Reduction::Op::product;
      break;
    case Type::MIN:
      result.op = Reduction::Op::min;
      break;
    case Type::MAX:
      result.op = Reduction::Op::max;
      break;
    default:
      TORCH_CHECK(false, library_.name, " cannot reduce with ", nameOf(op));
  }
  return result;
}

Ccl::WorkRef Ccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast");
  Call call(c10d::OpType::BROADCAST, describeCall("broadcast", tensor));
  call.root = static_cast<int>(options.rootRank);
  call.outputs = tensors;
  call.timeout = options.timeout;
  call.body = [flat = flat(tensor, call), root = call.root](const Communication& with) {
    emulator::broadcast(with, root, flat);
  };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  only(tensors, "allreduce");
  c10d::AllreduceCoalescedOptions same;
  same.reduceOp = options.reduceOp;
  same.timeout = options.timeout;
  return allreduce_coalesced(tensors, same);
}

Ccl::WorkRef Ccl::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK(!tensors.empty(), "allreduce: expected at least one tensor");
  Call call(c10d::OpType::ALLREDUCE, describeCall("allreduce", tensors[0], nameOf(options.reduceOp)));
  call.outputs = tensors;
  call.timeout = options.timeout;
  const Flats parts = flats(tensors, call);
  call.counts = countsOf(parts);
  std::vector<Reduction> reductions;
  for (const at::Tensor& tensor : tensors) reductions.push_back(reduction(options.reduceOp, tensor));
  call.body = [parts, reductions](const Communication& with) {
    for (std::size_t i = 0; i < parts.size(); ++i) allReduce(with, parts[i], reductions[i]);
  };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce");
  Call call(c10d::OpType::REDUCE, describeCall("reduce", tensor, nameOf(options.reduceOp)));
  call.root = static_cast<int>(options.rootRank);
  call.outputs = tensors;
  call.timeout = options.timeout;
  call.body = [flat = flat(tensor, call), root = call.root, how = reduction(options.reduceOp, tensor)](
                  const Communication& with) { reduceTo(with, root, flat, how); };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs, "allgather");
  const Tensors& list = onlyList(outputs, size_, "allgather");
  Call call(c10d::OpType::ALLGATHER, c10::str("allgather ", c10::toString(input.scalar_type())));
  call.outputs = list;
  call.timeout = options.timeout;
  const Flats parts = flats(list, call);
  call.counts = countsOf(parts);
  TORCH_CHECK(list[static_cast<std::size_t>(rank_)].numel() == input.numel(), library_.name,
              ": allgather: the input has ", input.numel(), " elements, its place in the output ",
              list[static_cast<std::size_t>(rank_)].numel());
  call.body = [parts, own = flat(input, call)](const Communication& with) { allGather(with, parts, own); };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::_allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Ccl::WorkRef Ccl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(),
              "allgather: expected as many outputs as inputs");
  Call call(c10d::OpType::_ALLGATHER_BASE, describeCall("allgather", inputs[0]));
  call.outputs = outputs;
  call.timeout = options.timeout;
  std::vector<std::pair<Flats, Flat>> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * size_, library_.name,
                ": allgather: the output has ", outputs[i].numel(), " elements, expected ",
                inputs[i].numel() * size_);
    pairs.emplace_back(blocks(outputs[i], call), flat(inputs[i], call));
    call.counts.push_back(inputs[i].numel());
  }
  call.body = [pairs](const Communication& with) {
    for (const auto& [parts, own] : pairs) allGather(with, parts, own);
  };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  Call call(c10d::OpType::GATHER, describeCall("gather", input));
  call.root = static_cast<int>(options.rootRank);
  call.timeout = options.timeout;
  Flats parts;
  if (rank_ == call.root) {
    call.outputs = onlyList(outputs, size_, "gather");
    parts = flats(call.outputs, call);
  }
  call.body = [parts, own = flat(input, call), root = call.root](const Communication& with) {
    gatherTo(with, root, parts, own);
  };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  Call call(c10d::OpType::SCATTER, describeCall("scatter", output));
  call.root = static_cast<int>(options.rootRank);
  call.outputs = outputs;
  call.timeout = options.timeout;
  Flats parts;
  if (rank_ == call.root) parts = flats(onlyList(inputs, size_, "scatter"), call);
  call.body = [parts, own = flat(output, call), root = call.root](const Communication& with) {
    scatterFrom(with, root, own, parts);
  };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const Tensors& list = onlyList(inputs, size_, "reduce_scatter");
  Call call(c10d::OpType::REDUCE_SCATTER,
            c10::str("reduce_scatter ", nameOf(options.reduceOp), " ", c10::toString(output.scalar_type())));
  call.outputs = outputs;
  call.timeout = options.timeout;
  const Flats parts = flats(list, call);
  call.counts = countsOf(parts);
  TORCH_CHECK(list[static_cast<std::size_t>(rank_)].numel() == output.numel(), library_.name,
              ": reduce_scatter: the output has ", output.numel(), " elements, its input ",
              list[static_cast<std::size_t>(rank_)].numel());
  call.body = [parts, own = flat(output, call), how = reduction(options.reduceOp, output)](
                  const Communication& with) { reduceScatter(with, own, parts, how); };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Ccl::WorkRef Ccl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(!inputs.empty() && outputs.size() == inputs.size(),
              "reduce_scatter: expected as many outputs as inputs");
  struct Part {
    Flat output;
    Flats blocks;
    Reduction reduction;
  };
  Call call(c10d::OpType::_REDUCE_SCATTER_BASE,
            describeCall("reduce_scatter", inputs[0], nameOf(options.reduceOp)));
  call.outputs = outputs;
  call.timeout = options.timeout;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * size_, library_.name,
                ": reduce_scatter: the input has ", inputs[i].numel(), " elements, expected ",
                outputs[i].numel() * size_);
    parts.push_back(
        {flat(outputs[i], call), blocks(inputs[i], call), reduction(options.reduceOp, outputs[i])});
    call.counts.push_back(inputs[i].numel());
  }
  call.body = [parts](const Communication& with) {
    for (const Part& part : parts) reduceScatter(with, part.output, part.blocks, part.reduction);
  };
  return submit(std::move(call));
}

void Ccl::requireEven(const Flats& parts, const Flats& others) const {
  if (library_.gaps.count("uneven_all_to_all") == 0) return;
  for (const Flats* flats : {&parts, &others}) {
    for (const Flat& part : *flats) {
      TORCH_CHECK(part.numel() == parts[0].numel(), library_.name,
                  " has no all-to-all with unequal splits (uneven_all_to_all): found parts of ",
                  parts[0].numel(), " and of ", part.numel(), " elements");
    }
  }
}

Ccl::WorkRef Ccl::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& outputSplits,
                                std::vector<int64_t>& inputSplits, const c10d::AllToAllOptions& options) {
  // Splits count rows; a row is what one index of the first dimension holds.
  const auto cut = [&](const at::Tensor& tensor, const std::vector<int64_t>& rows, Call& call) {
    if (rows.empty()) return blocks(tensor, call);
    TORCH_CHECK(rows.size() == static_cast<std::size_t>(size_), library_.name, ": all_to_all: expected ",
                size_, " split sizes, found ", rows.size());
    const int64_t row = tensor.dim() == 0 || tensor.size(0) == 0 ? 1 : tensor.numel() / tensor.size(0);
    std::vector<int64_t> elements;
    for (const int64_t count : rows) elements.push_back(count * row);
    return splits(tensor, elements, call);
  };
  Call call(c10d::OpType::ALLTOALL_BASE, c10::str("alltoall ", c10::toString(input.scalar_type())));
  call.outputs = {output};
  call.timeout = options.timeout;
  const Flats to = cut(output, outputSplits, call);
  const Flats from = cut(input, inputSplits, call);
  requireEven(to, from);
  call.body = [to, from](const Communication& with) { allToAll(with, to, from); };
  return submit(std::move(call));
}

Ccl::WorkRef Ccl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto size = static_cast<std::size_t>(size_);
  TORCH_CHECK(outputs.size() == size && inputs.size() == size, library_.name, ": all_to_all: expected ",
              size_, " outputs and inputs, found ", outputs.size(), " and ", inputs.size());
  Call call(c10d::OpType::ALLTOALL, c10::str("alltoall ", c10::toString(inputs[0].scalar_type())));
  call.outputs = outputs;
  call.timeout = options.timeout;
  const Flats to = flats(outputs, call);
  const Flats from = flats(inputs, call);
  requireEven(to, from);
  call.body = [to, from](const Communication& with) { allToAll(with, to, from); };
  return submit(std::move(call));
}

Ccl::Call Ccl::message(Tensors& tensors, int peer, int tag, bool send) {
  const char* what = send ? "send" : "recv";
  const at::Tensor& tensor = only(tensors, what);
  TORCH_CHECK(tag == 0, library_.name, ": ", what, ": messages have no tags, found ", tag);
  TORCH_CHECK(peer >= 0 && peer < size_ && peer != rank_, library_.name, ": ", what,
              ": there is no other rank ", peer);
  Call call(send ? c10d::OpType::SEND : c10d::OpType::RECV,
            describeCall(what, tensor, c10::str(send ? "to rank " : "from rank ", peer)));
  if (!send) call.outputs = tensors;
  const Flat whole = flat(tensor, call);
  call.messages.push_back(
      {peer, send, whole.numel() == 0 ? nullptr : whole.mutable_data_ptr(), whole.nbytes()});
  return call;
}

Ccl::WorkRef Ccl::send(Tensors& tensors, int peer, int tag) {
  return submit(message(tensors, peer, tag, true));
}
Ccl::WorkRef Ccl::recv(Tensors& tensors, int peer, int tag) {
  return submit(message(tensors, peer, tag, false));
}

Ccl::WorkRef Ccl::barrier(const c10d::BarrierOptions& options) {
  Call call(c10d::OpType::BARRIER, "barrier");
  call.timeout = options.timeout;
  call.body = [](const Communication&) {};  // that all members agree is all there is to it
  return submit(std::move(call));
}

}  // namespace kaitian::emulator
