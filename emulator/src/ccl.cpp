#include "ccl.h"

#include <ATen/ATen.h>

#include <thread>
#include <utility>

#include "ccl_connect.h"
#include "fallback.h"
#include "guard.h"
#include "pace.h"

namespace kaitian::emulator {
namespace {

std::exception_ptr backendError(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError(
      c10::SourceLocation{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, message));
}

std::uint64_t hashOf(const std::vector<std::int64_t>& counts) {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const std::int64_t count : counts)
    hash = (hash ^ static_cast<std::uint64_t>(count)) * 1099511628211ULL;
  return hash;
}

std::size_t bytesOf(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace

Ccl::Ccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::vector<int>& ranks,
         Milliseconds timeout, Library library)
    : Backend(rank, size), library_(std::move(library)), timeout_(timeout) {
  if (library_.ownStream) stream_ = &newStream();
  if (!library_.null) channel_ = connectMembers(*store, rank, size, ranks, timeout, library_);
}

c10d::ErrorType Ccl::getError() {
  return channel_ && !channel_->failure().empty() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void Ccl::abort() {
  if (channel_) channel_->abort();
}

/// Queued work still runs: other members may wait for it.
void Ccl::shutdown() { closed_ = true; }

void Ccl::startCoalescing() {
  coalesced_.clear();
  coalescing_ = std::make_shared<Outcome>();
}

Ccl::WorkRef Ccl::endCoalescing() {
  TORCH_CHECK(coalescing_, library_.name, ": endCoalescing without startCoalescing");
  return launch(std::exchange(coalesced_, {}), std::exchange(coalescing_, nullptr));
}

Ccl::WorkRef Ccl::submit(Call call) {
  if (!coalescing_) {
    std::vector<Call> calls;
    calls.push_back(std::move(call));
    return launch(std::move(calls), std::make_shared<Outcome>());
  }
  auto work = c10::make_intrusive<CclWork>(rank_, call.type, coalescing_, nullptr, call.outputs, false);
  coalesced_.push_back(std::move(call));
  return work;
}

/// Where the next call runs: behind what the caller has enqueued.
Stream& Ccl::streamBehind(Stream& caller) {
  if (stream_ == nullptr) return caller;
  auto before = std::make_shared<Event>();
  before->record(caller);
  before->block(*stream_);
  constexpr std::chrono::milliseconds kLate{2};
  stream_->enqueue([kLate] { std::this_thread::sleep_for(kLate); });
  return *stream_;
}

Ccl::WorkRef Ccl::launch(std::vector<Call> calls, std::shared_ptr<Outcome> outcome) {
  const c10d::OpType type = calls.size() == 1 ? calls[0].type : c10d::OpType::COALESCED;
  Tensors outputs;
  Milliseconds timeout = timeout_;
  std::string name;
  std::size_t bytes = 0;
  for (const Call& call : calls) {
    outputs.insert(outputs.end(), call.outputs.begin(), call.outputs.end());
    if (call.timeout != c10d::kUnsetTimeout) timeout = call.timeout;
    name = name.empty() ? call.name : "coalesced " + calls[0].name + ", ...";
    bytes += bytesOf(call.tensors);
  }
  if (library_.null || calls.empty()) {
    outcome->finish(nullptr);
    return c10::make_intrusive<CclWork>(rank_, type, std::move(outcome), nullptr, std::move(outputs), false);
  }
  TORCH_CHECK_WITH(DistBackendError, !closed_, library_.name, ": cannot call ", name, " after shutdown");
  if (const std::string reason = channel_->failure(); !reason.empty()) {
    std::rethrow_exception(backendError(library_.name + ": cannot call " + name + ": " + reason));
  }
  const Fault fault = nextCall();
  if (fault.kind == FaultKind::fail) {
    const std::string reason =
        library_.name + ": " + name + " failed (emulated fault at call " + std::to_string(fault.call) + ")";
    channel_->fail(reason);
    std::rethrow_exception(backendError(reason));
  }
  std::vector<std::uint64_t> sequences;
  Stream& stream = streamBehind(currentStream());
  for (const Call& call : calls) {
    sequences.push_back(call.body ? sequence_++ : sequence_);
    for (const at::Tensor& tensor : call.tensors) useOn(tensor, stream);
  }
  for (Call& call : calls) {
    call.tensors.clear();  // a stream thread must not drop a tensor that Python knows
    call.outputs.clear();
  }
  stream.enqueue([channel = channel_, outcome, calls = std::move(calls), sequences,
                  ticket = channel_->ticket(), fault, name, timeout, bytes, &stream, issued = issueTime()] {
    const at::NoGradGuard noGrad;
    const at::AutoDispatchBelowADInplaceOrView below;
    const TransferPace transfer(stream, issued, bytes, TransferPace::Kind::kCollective);
    const Deadline deadline = Channel::Clock::now() + timeout;
    try {
      channel->run(ticket, name, fault, deadline, [&] { runAll(calls, sequences, *channel, deadline); });
      outcome->finish(nullptr);
    } catch (const std::exception& error) {
      outcome->finish(backendError(error.what()));
      std::rethrow_exception(outcome->error());
    }
  });
  auto event = std::make_shared<Event>();
  event->record(stream);
  if (library_.synchronous) {
    event->synchronize();
    if (const std::exception_ptr error = outcome->error()) std::rethrow_exception(error);
  }
  Stream& before = exchangeCurrentStream(stream);  // which the future's events are recorded on
  auto work = c10::make_intrusive<CclWork>(rank_, type, std::move(outcome), std::move(event),
                                           std::move(outputs), type == c10d::OpType::BARRIER);
  exchangeCurrentStream(before);
  return work;
}

void Ccl::runAll(const std::vector<Call>& calls, const std::vector<std::uint64_t>& sequences,
                 Channel& channel, Deadline deadline) {
  std::vector<Transfer> messages;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    messages.insert(messages.end(), call.messages.begin(), call.messages.end());
    if (!call.body) continue;
    Signature signature;
    signature.sequence = sequences[i];
    signature.counts = hashOf(call.counts);
    signature.root = call.root;
    call.name.copy(signature.operation, Signature::kTextBytes - 1);
    channel.agree(signature, deadline);
    call.body({channel, deadline});
  }
  if (!messages.empty()) channel.mesh().exchange(messages, deadline);
}

}  // namespace kaitian::emulator
