#include "relay/call.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kaitian/plan/planner.h"
#include "relay/encode.h"

namespace kaitian::relay::test {
namespace {

using plan::Kind;

int scaleOf(int rank) { return 2 + rank % 2; }

}  // namespace

std::string describe(const Case& c) {
  std::string text = std::string(plan::toString(c.collective.kind)) + " " + toString(c.collective.dtype) +
                     " " + toString(c.collective.op) + " root " + std::to_string(c.collective.root) +
                     " counts";
  for (std::size_t i = 0; i < c.collective.counts.size() && i < 12; ++i)
    text += " " + std::to_string(c.collective.counts[i]);
  if (c.collective.lists) text += " lists";
  if (c.inPlace) text += " in place";
  if (c.splits) text += " splits";
  return text;
}

Call::Call(const Case& c, RelayRank& rank)
    : case_(c),
      rank_(rank),
      worldSize_(rank.group().layout().worldSize()),
      onDevice_(rank.device != nullptr &&
                (c.onHost.empty() || !c.onHost[static_cast<std::size_t>(rank.rank)])) {
  switch (case_.collective.kind) {
    case Kind::allReduce:
    case Kind::reduce:
    case Kind::broadcast:
      addInPlace();
      break;
    case Kind::allToAll:
      addPairs();
      break;
    case Kind::barrier:
      break;
    default:
      addBlocks();
  }
  allocate(outputs_);
  allocate(inputs_);
  if (case_.inPlace) aliasOwnBlocks();
}

double Call::value(int rank, std::int64_t element) const {
  const auto mixed = static_cast<std::int64_t>(rank) * 7 + element * 3 + case_.salt;
  if (case_.collective.dtype == DType::boolean) return static_cast<double>(mixed % 2);
  switch (case_.collective.op) {
    case ReduceOp::product:
      return static_cast<double>(1 + mixed % 2);
    case ReduceOp::avg:
      return static_cast<double>(worldSize_ * (mixed % 3));
    default:
      return static_cast<double>(1 + mixed % 5);
  }
}

double Call::foldedValue(std::int64_t element) const {
  const ReduceOp op = case_.collective.op;
  double all = value(0, element) * (op == ReduceOp::premulSum ? scaleOf(0) : 1);
  for (int rank = 1; rank < worldSize_; ++rank) {
    const double next = value(rank, element);
    const auto a = static_cast<std::int64_t>(all), b = static_cast<std::int64_t>(next);
    switch (op) {
      case ReduceOp::premulSum:
        all += next * scaleOf(rank);
        break;
      case ReduceOp::product:
        all *= next;
        break;
      case ReduceOp::min:
        all = std::min(all, next);
        break;
      case ReduceOp::max:
        all = std::max(all, next);
        break;
      case ReduceOp::band:
        all = static_cast<double>(a & b);
        break;
      case ReduceOp::bor:
        all = static_cast<double>(a | b);
        break;
      case ReduceOp::bxor:
        all = static_cast<double>(a ^ b);
        break;
      default:
        all += next;
    }
  }
  return op == ReduceOp::avg ? all / worldSize_ : all;
}

std::vector<std::byte> Call::values(int rank, std::int64_t first, std::int64_t count) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size());
  for (std::int64_t i = 0; i < count; ++i)
    encode(case_.collective.dtype, value(rank, first + i),
           bytes.data() + static_cast<std::size_t>(i) * size());
  return bytes;
}

std::vector<std::byte> Call::folded(std::int64_t first, std::int64_t count) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size());
  for (std::int64_t i = 0; i < count; ++i)
    encode(case_.collective.dtype, foldedValue(first + i),
           bytes.data() + static_cast<std::size_t>(i) * size());
  return bytes;
}

std::vector<std::byte> Call::unset(std::int64_t count) const {
  return std::vector<std::byte>(static_cast<std::size_t>(count) * size(), std::byte{0xEE});
}

void Call::add(Tensors& tensors, std::vector<std::byte> before, std::vector<std::byte> expected) {
  Tensor tensor;
  tensor.count = static_cast<std::int64_t>(before.size() / size());
  tensor.before = std::move(before);
  tensor.expected = std::move(expected);
  tensors.push_back(std::move(tensor));
}

void Call::addInPlace() {
  const auto& c = case_.collective;
  std::int64_t first = 0;
  for (const std::int64_t count : c.counts) {
    const auto own = values(rank_.rank, first, count);
    if (c.kind == Kind::broadcast)
      add(outputs_, rank_.rank == c.root ? own : unset(count), values(c.root, first, count));
    else
      add(outputs_, own, c.kind == Kind::reduce && rank_.rank != c.root ? own : folded(first, count));
    first += count;
  }
}

/// One tensor of all blocks, or one per block.
void Call::addMany(Tensors& tensors, const std::vector<std::vector<std::byte>>& before,
                   const std::vector<std::vector<std::byte>>& expected) {
  if (case_.collective.lists) {
    for (std::size_t i = 0; i < before.size(); ++i) add(tensors, before[i], expected[i]);
    return;
  }
  std::vector<std::byte> allBefore, allExpected;
  for (const auto& block : before) allBefore.insert(allBefore.end(), block.begin(), block.end());
  for (const auto& block : expected) allExpected.insert(allExpected.end(), block.begin(), block.end());
  add(tensors, allBefore, allExpected);
}

void Call::addBlocks() {
  const auto& c = case_.collective;
  const bool gathers = c.kind == Kind::allGather || c.kind == Kind::gather;
  const bool folds = c.kind == Kind::reduceScatter;
  const bool many = c.kind == Kind::allGather || folds || rank_.rank == c.root;
  std::int64_t first = 0;
  for (std::size_t group = 0; group * static_cast<std::size_t>(worldSize_) < c.counts.size(); ++group) {
    std::vector<std::vector<std::byte>> before, expected;
    for (int r = 0; r < worldSize_; ++r) {
      const std::int64_t count =
          c.counts[group * static_cast<std::size_t>(worldSize_) + static_cast<std::size_t>(r)];
      const auto contributed = values(gathers ? r : rank_.rank, first, count);
      before.push_back(gathers ? unset(count) : contributed);
      expected.push_back(contributed);
      if (r == rank_.rank && gathers) add(inputs_, contributed, contributed);
      if (r == rank_.rank && !gathers)
        add(outputs_, unset(count), folds ? folded(first, count) : values(c.root, first, count));
      first += count;
    }
    if (many) addMany(gathers ? outputs_ : inputs_, before, expected);
  }
}

void Call::addPairs() {
  const auto& c = case_.collective;
  std::vector<std::vector<std::byte>> sent, unsetBlocks, received;
  std::int64_t first = 0;
  for (int s = 0; s < worldSize_; ++s) {
    for (int d = 0; d < worldSize_; ++d) {
      const std::int64_t count = c.counts[static_cast<std::size_t>(s * worldSize_ + d)];
      if (s == rank_.rank) sent.push_back(values(s, first, count));
      if (d == rank_.rank) received.push_back(values(s, first, count));
      if (d == rank_.rank) unsetBlocks.push_back(unset(count));
      first += count;
    }
  }
  addMany(inputs_, sent, sent);
  addMany(outputs_, unsetBlocks, received);
}

void Call::allocate(Tensors& tensors) {
  for (auto& tensor : tensors) {
    const std::size_t bytes = tensor.before.size();
    if (onDevice_) {
      tensor.block = rank_.device->allocateDevice(std::max<std::size_t>(bytes, 1)).value();
      tensor.address = tensor.block->data();
    } else {
      tensor.memory = std::make_shared<std::vector<std::byte>>(tensor.before);
      tensor.address = tensor.memory->data();
    }
  }
}

/// The one side becomes its own block of the other.
void Call::aliasOwnBlocks() {
  const bool gathers = case_.collective.kind == Kind::allGather;
  auto& own = gathers ? inputs_ : outputs_;
  auto& many = gathers ? outputs_ : inputs_;
  for (std::size_t group = 0; group < own.size(); ++group) {
    const plan::Ref ref = plan::ownBlock(case_.collective, worldSize_, rank_.rank, static_cast<int>(group));
    auto& whole = many[static_cast<std::size_t>(ref.tensor)];
    const auto offset = static_cast<std::size_t>(ref.offset) * size();
    own[group].address = whole.address + offset;
    own[group].isView = true;
    const auto& block = gathers ? own[group].before : own[group].expected;
    auto& target = gathers ? whole.before : whole.expected;
    std::copy(block.begin(), block.end(), target.begin() + static_cast<std::ptrdiff_t>(offset));
    if (gathers && !onDevice_)
      std::copy(block.begin(), block.end(), whole.memory->begin() + static_cast<std::ptrdiff_t>(offset));
  }
}

OperationRef Call::submit(Group& group, std::chrono::milliseconds timeout) {
  Request request;
  request.collective = case_.collective;
  for (const auto& input : inputs_) request.inputs.push_back({input.address, input.count});
  for (const auto& output : outputs_) request.outputs.push_back({output.address, output.count});
  if (case_.splits) {
    for (int r = 0; r < worldSize_; ++r) {
      request.sends.push_back(case_.collective.counts[static_cast<std::size_t>(rank_.rank * worldSize_ + r)]);
      request.receives.push_back(
          case_.collective.counts[static_cast<std::size_t>(r * worldSize_ + rank_.rank)]);
    }
    request.collective.counts.clear();
  }
  if (case_.collective.op == ReduceOp::premulSum) {
    request.scale.integer = scaleOf(rank_.rank);
    request.scale.real = scaleOf(rank_.rank);
  }
  request.onDevice = onDevice_;
  request.timeout = timeout;
  if (onDevice_) {
    auto blocks = std::make_shared<std::vector<BlockRef>>();
    for (const auto* tensors : {&inputs_, &outputs_}) {
      for (const auto& tensor : *tensors) {
        blocks->push_back(tensor.block);
        if (!tensor.isView) rank_.device->write(tensor.address, tensor.before, tensor.block);
      }
    }
    request.keepAlive = blocks;
    request.after = rank_.device->record();
  }
  operation_ = group.submit(std::move(request));
  return operation_;
}

std::vector<std::byte> Call::read(const Tensor& tensor) const {
  if (!onDevice_) return {tensor.address, tensor.address + tensor.before.size()};
  return rank_.device->read(tensor.address, tensor.before.size(), operation_->events());
}

std::string Call::check() {
  if (!operation_->wait(host::Clock::now() + std::chrono::seconds(60))) return "not finished after 60 s";
  if (!operation_->status().ok()) return operation_->status().toString();
  for (const auto* tensors : {&inputs_, &outputs_}) {
    for (std::size_t t = 0; t < tensors->size(); ++t) {
      const auto& tensor = (*tensors)[t];
      if (tensor.isView) continue;
      const auto found = read(tensor);
      const auto wrong = std::mismatch(found.begin(), found.end(), tensor.expected.begin());
      if (wrong.first == found.end()) continue;
      return std::string(tensors == &inputs_ ? "input " : "output ") + std::to_string(t) + " of " +
             std::to_string(tensor.count) + " elements, byte " + std::to_string(wrong.first - found.begin()) +
             ": expected " + std::to_string(std::to_integer<int>(*wrong.second)) + ", found " +
             std::to_string(std::to_integer<int>(*wrong.first));
    }
  }
  return {};
}

void runCases(const RelayShape& shape, const std::vector<Case>& cases) {
  std::string devices;
  for (const auto& device : shape.devices) devices += device + " ";
  runRelay(shape, [&](RelayRank& rank) {
    for (const auto& c : cases) {
      Call call(c, rank);
      call.submit(rank.group());
      const std::string wrong = call.check();
      EXPECT_EQ(wrong, "") << "rank " << rank.rank << " of [" << devices << "]: " << describe(c);
      if (!rank.group().status().ok()) return;
    }
  });
}

}  // namespace kaitian::relay::test
