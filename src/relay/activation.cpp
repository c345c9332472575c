#include "relay/activation.h"

#include <cstring>

#include "kaitian/core/log.h"
#include "kaitian/host/ranks.h"

namespace kaitian::relay {
namespace {

constexpr std::uint32_t kRecord = 0x43617061;  // key of HostGroup::post

/// "SUM float16, MAX float64" of what `claimed` has and `found` lacks.
std::string removed(const Capabilities& claimed, const Capabilities& found) {
  std::string text;
  const auto add = [&text](const char* what, DType dtype) {
    text += (text.empty() ? "" : ", ") + std::string(what) + " " + toString(dtype);
  };
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (claimed.canMove(dtype) && !found.canMove(dtype)) add("movement", dtype);
    for (int o = 1; o < kReduceOpCount; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (claimed.canReduce(op, dtype) && !found.canReduce(op, dtype)) add(toString(op), dtype);
    }
  }
  return text;
}

}  // namespace

/// `ran` publishes the rest from the launch thread to the progress thread.
struct Activation::Outcome {
  Status status;
  Capabilities capabilities;
  std::atomic<bool> ran{false};
};

bool Activation::idle() const { return !outcome_ || outcome_->ran.load(std::memory_order_acquire); }

bool Activation::mustVerify() const {
  const auto island = static_cast<std::size_t>(context_->island());
  return island >= context_->config.verify.size() || context_->config.verify[island];
}

void Activation::start(const Lane::TicketRef& ticket) {
  if (started_) return;
  started_ = true;
  const std::size_t members = context_->layout.islandMembers(context_->island()).size();
  if (members < 2) {
    published_ = true;  // nobody asks
  } else if (!context_->vendor) {
    publish({});
  } else {
    outcome_ = std::make_shared<Outcome>();
    context_->lane->add(ticket, [context = context_, outcome = outcome_, verify = mustVerify()] {
      connect(*context, *outcome, verify);
      outcome->ran.store(true, std::memory_order_release);
      context->wake();
    });
  }
}

/// Launch thread.
void Activation::connect(Context& context, Outcome& outcome, bool verify) {
  if (context.failed.load(std::memory_order_relaxed)) return;
  VendorLibrary& library = *context.vendor;
  outcome.status = library.connect();
  if (!outcome.status.ok()) return;
  outcome.capabilities = library.claimed();
  if (!verify) {
    auto earlier = parseCapabilities(context.config.capabilities);
    if (earlier.ok()) outcome.capabilities = earlier.value();
    return;
  }
  auto found = library.verify();
  if (!found.ok()) {
    outcome.status = found.status();
    return;
  }
  const std::string missing = removed(outcome.capabilities, found.value());
  outcome.capabilities = found.value();
  if (!missing.empty())
    core::log(core::LogLevel::warn, host::globalRank(context.config.globalRanks, context.rank()),
              "vendor library ", library.name(), " on ", context.device->name(),
              " gives errors or wrong results for ", missing, "; kaitian carries these itself");
}

void Activation::publish(const Capabilities& capabilities) {
  published_ = true;
  own_ = serialize(capabilities);
  context_->hosts.post(kRecord, std::as_bytes(std::span(own_.data(), own_.size())));
}

bool Activation::poll() {
  if (!started_ || active_) return false;
  if (!published_) {
    if (!idle()) return false;
    if (!outcome_->status.ok()) {
      context_->fail(outcome_->status);
      return true;
    }
    publish(outcome_->capabilities);
  }
  return collect();
}

bool Activation::collect() {
  if (!waitingFor().empty()) return false;
  const plan::Layout& layout = context_->layout;
  std::vector<Capabilities> all(static_cast<std::size_t>(layout.islands()));
  for (int island = 0; island < layout.islands(); ++island) {
    const auto& members = layout.islandMembers(island);
    if (members.size() < 2) continue;
    bool first = true;
    for (const int member : members) {
      Result<Capabilities> theirs = Capabilities{};
      if (member == context_->rank()) {
        theirs = parseCapabilities(own_);
      } else {
        const auto* record = context_->hosts.posted(kRecord, member);
        theirs = parseCapabilities({reinterpret_cast<const char*>(record->data()), record->size()});
      }
      if (!theirs.ok()) {
        context_->fail(theirs.status());
        return true;
      }
      auto& island_ = all[static_cast<std::size_t>(island)];
      island_ = first ? theirs.value() : common(island_, theirs.value());
      first = false;
    }
  }
  capabilities_ = std::move(all);
  return active_ = true;
}

std::vector<int> Activation::waitingFor() const {
  std::vector<int> missing;
  const plan::Layout& layout = context_->layout;
  for (int island = 0; island < layout.islands(); ++island) {
    const auto& members = layout.islandMembers(island);
    if (members.size() < 2) continue;
    for (const int member : members) {
      const bool there =
          member == context_->rank() ? published_ : context_->hosts.posted(kRecord, member) != nullptr;
      if (!there) missing.push_back(member);
    }
  }
  return missing;
}

}  // namespace kaitian::relay
