// From a call of c10d to an operation of the relay or a call of the vendor library.
#include "torch/backend.h"
#include "torch/overlap.h"
#include "torch/tensors.h"

namespace kaitian::shim {
namespace {

using plan::Kind;

bool inPlaceKind(Kind kind) {
  return kind == Kind::allReduce || kind == Kind::broadcast || kind == Kind::reduce;
}

}  // namespace

bool Backend::checkDevices(const char* name, const Tensors& inputs, const Tensors& outputs) const {
  std::optional<c10::Device> device;
  for (const auto* list : {&inputs, &outputs}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto& tensor = (*list)[i];
      const auto refuse = [&](const std::string& problem) {
        throwIfBad({Code::invalidArgument, std::string(name) + ": argument " +
                                               (list == &inputs ? "input" : "output") + " tensor " +
                                               std::to_string(i) + ": expected " + problem});
      };
      if (!tensor.defined()) refuse("a tensor, found an undefined one");
      if (tensor.layout() != at::kStrided || !tensor.has_storage())
        refuse("a dense tensor, found layout " + c10::str(tensor.layout()));
      const bool here = tensor.is_cpu() || (device_ && tensor.device() == device_->device());
      if (!here)
        refuse("a tensor on " +
               (device_ ? "cpu or " + device_->name() : "cpu (this rank has no accelerator)") +
               ", found one on " + tensor.device().str());
      if (device && *device != tensor.device())
        refuse("device " + device->str() + " as of the tensors before it, found " + tensor.device().str());
      device = tensor.device();
    }
  }
  return device && !device->is_cpu();
}

WorkRef Backend::run(Call call) {
  checkUsable();
  const std::string kind = plan::toString(call.collective.kind),
                    name = call.name != nullptr ? call.name : kind;
  const bool onDevice = checkDevices(name.c_str(), call.inputs, call.outputs);
  checkTypes(name.c_str(), call.inputs, call.outputs, call.op);
  checkOutputs(name.c_str(), call.outputs);
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

  Dense dense(call.inputs, call.outputs, inPlaceKind(collective.kind),
              sharedInputs(collective, getRank(), getSize(), call.inputs, call.outputs));
  relay::Request request;
  request.collective = std::move(collective);
  request.sends = std::move(call.sends);
  request.receives = std::move(call.receives);
  request.scale = scale;
  request.onDevice = onDevice;
  request.timeout = timeoutOr(call.timeout);
  request.callerWaits = call.waits;
  if (passes(call, request)) return passThrough(call, request, dense);

  request.inputs = buffersOf(dense.inputs, asBytes);
  request.outputs = buffersOf(dense.outputs, asBytes);
  // Reads of inputs and writes of outputs come after what the caller has enqueued on its current stream; who
  // passes a barrier may rely on it.
  const bool isBarrier = request.collective.kind == Kind::barrier;
  if (onDevice || (isBarrier && device_))
    request.after = std::make_shared<TorchEvent>(device_->currentStream());
  Tensors used = dense.inputs;
  used.insert(used.end(), dense.outputs.begin(), dense.outputs.end());
  request.keepAlive = keep(std::move(used));

  OperationWork::Config work;
  work.rank = getRank();
  work.type = call.type;
  work.title = "kaitian:" + kind;
  work.inputs = call.inputs.empty() ? call.outputs : call.inputs;
  work.outputs = call.outputs;
  if (onDevice) work.device = device_;
  work.writeBack = dense.writeBack();
  work.counters = counters_;
  work.bytes = std::max(bytesOf(call.inputs), bytesOf(call.outputs));
  return submit(std::move(work), std::move(request));
}

std::shared_ptr<void> Backend::keep(Tensors tensors) const {
  // The last reference to a tensor may need the GIL, which the progress thread must never wait for.
  auto* held = new Tensors(std::move(tensors));
  return {static_cast<void*>(held),
          [process = process_](void* p) { process->complete([p] { delete static_cast<Tensors*>(p); }); }};
}

WorkRef Backend::submit(OperationWork::Config config, relay::Request request) {
  auto work = c10::make_intrusive<OperationWork>(std::move(config));
  request.done = [work] { work->finished(); };
  work->attach(group_->submit(std::move(request)));
  return deliver(work);
}

WorkRef Backend::deliver(WorkRef work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (batches_.empty()) return work;
  const auto batch = batches_.find(std::this_thread::get_id());
  if (batch != batches_.end()) batch->second.push_back(work);
  return work;
}

}  // namespace kaitian::shim
