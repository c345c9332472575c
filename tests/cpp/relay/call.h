// One collective as a rank calls it in a test: its tensors, filled with values that have one exact answer,
// and what the plain definition of the collective says that they hold afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "relay/relay_world.h"

namespace kaitian::relay::test {

/// The same on all ranks.
struct Case {
  plan::Collective collective;
  bool splits = false;       // all-to-all with split sizes, from collective.counts
  bool inPlace = false;      // all-gather and reduce-scatter
  std::vector<bool> onHost;  // [rank] passes host tensors though it has a device; empty: none
  int salt = 0;              // other values

  Case(plan::Kind kind, DType dtype, ReduceOp op, std::vector<std::int64_t> counts, int root = 0) {
    collective = {kind, dtype, op, root, std::move(counts), false};
  }
};
std::string describe(const Case& c);

class Call {
 public:
  Call(const Case& c, RelayRank& rank);
  /// Writes inputs and submits.
  OperationRef submit(Group& group, std::chrono::milliseconds timeout = std::chrono::milliseconds(0));
  /// Waits and compares; "" if all is as it should be.
  std::string check();
  const OperationRef& operation() const { return operation_; }

 private:
  struct Tensor {
    std::byte* address = nullptr;
    std::int64_t count = 0;
    std::vector<std::byte> before, expected;
    std::shared_ptr<std::vector<std::byte>> memory;  // host tensors
    BlockRef block;                                  // device tensors
    bool isView = false;
  };
  using Tensors = std::vector<Tensor>;

  void addInPlace();
  void addBlocks();
  void addPairs();
  void addMany(Tensors& tensors, const std::vector<std::vector<std::byte>>& before,
               const std::vector<std::vector<std::byte>>& expected);
  std::vector<std::byte> values(int rank, std::int64_t first, std::int64_t count) const;
  std::vector<std::byte> folded(std::int64_t first, std::int64_t count) const;
  std::vector<std::byte> unset(std::int64_t count) const;
  double value(int rank, std::int64_t element) const;
  double foldedValue(std::int64_t element) const;
  void add(Tensors& tensors, std::vector<std::byte> before, std::vector<std::byte> expected);
  void allocate(Tensors& tensors);
  void aliasOwnBlocks();
  std::vector<std::byte> read(const Tensor& tensor) const;
  std::size_t size() const { return sizeOf(case_.collective.dtype); }

  const Case case_;
  RelayRank& rank_;
  const int worldSize_;
  const bool onDevice_;
  Tensors inputs_, outputs_;
  OperationRef operation_;
};

/// Runs the cases one after the other on all ranks and expects right data.
void runCases(const RelayShape& shape, const std::vector<Case>& cases);

}  // namespace kaitian::relay::test
