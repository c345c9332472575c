#include "kaitian/host/signature.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace kaitian::host {
namespace {

using plan::Kind;
using plan::Layout;

Signature allReduce() {
  return {.sequence = 17,
          .kind = Kind::allReduce,
          .dtype = DType::f32,
          .op = ReduceOp::sum,
          .onDevice = false,
          .root = 0,
          .count = 100,
          .countsHash = 0,
          .scale = {},
          .sends = {},
          .receives = {}};
}

Signature broadcast(int root) {
  Signature s = allReduce();
  s.kind = Kind::broadcast;
  s.op = ReduceOp::none;
  s.root = root;
  return s;
}

Signature allToAll(std::vector<std::int64_t> sends, std::vector<std::int64_t> receives) {
  Signature s = allReduce();
  s.kind = Kind::allToAll;
  s.op = ReduceOp::none;
  s.count = 0;
  for (const std::int64_t count : sends) s.count += static_cast<std::uint64_t>(count);
  s.sends = std::move(sends);
  s.receives = std::move(receives);
  return s;
}

Layout cpus(int ranks) {
  std::vector<int> host(static_cast<std::size_t>(ranks), 0), island;
  for (int r = 0; r < ranks; ++r) island.push_back(r);
  return Layout::make(host, island);
}

std::string messageOf(const std::vector<Signature>& signatures, const Layout& layout) {
  const Status status = compare(signatures, layout);
  EXPECT_EQ(status.code(), Code::mismatch) << status.toString();
  return status.message();
}

TEST(Signature, WhenDescribed_ReadsAsTheCall) {
  EXPECT_EQ(describe(broadcast(0)), "broadcast #17 float32[100] root 0");
  EXPECT_EQ(describe(allReduce()), "all_reduce #17 float32[100] SUM");
  EXPECT_EQ(describe(allToAll({1, 2}, {1, 2})), "all_to_all #17 float32 with split sizes");
  EXPECT_EQ(describe(Signature{}), "barrier #0");
  const int globalRanks[] = {4, 6};
  EXPECT_EQ(describe(broadcast(1), globalRanks), "broadcast #17 float32[100] root 6");
}

TEST(Signature, WhenAllRanksCallTheSame_IsOk) {
  EXPECT_TRUE(compare(std::vector(4, allReduce()), cpus(4)).ok());
  EXPECT_TRUE(compare(std::vector(1, broadcast(0)), cpus(1)).ok());
}

TEST(Signature, WhenOneRankCallsSomethingElse_QuotesItAndRankZero) {
  std::vector<Signature> signatures(4, allReduce());
  signatures[3] = broadcast(0);
  EXPECT_EQ(messageOf(signatures, cpus(4)),
            "rank 3 called broadcast #17 float32[100] root 0; rank 0 called all_reduce #17 float32[100] SUM. "
            "All ranks of a group must make the same calls in the same order");
}

TEST(Signature, WhenAnyFieldDiffers_IsAMismatch) {
  const auto differs = [](auto change) {
    std::vector<Signature> signatures(3, allReduce());
    change(signatures[1]);
    return messageOf(signatures, cpus(3));
  };
  EXPECT_NE(differs([](Signature& s) { s.count = 101; }).find("rank 1 called all_reduce #17 float32[101]"),
            std::string::npos);
  EXPECT_NE(differs([](Signature& s) { s.dtype = DType::bf16; }).find("bfloat16[100] SUM"),
            std::string::npos);
  EXPECT_NE(differs([](Signature& s) { s.op = ReduceOp::max; }).find("float32[100] MAX"), std::string::npos);
  EXPECT_NE(differs([](Signature& s) { s.sequence = 18; }).find("all_reduce #18"), std::string::npos);
  EXPECT_NE(differs([](Signature& s) { s.root = 1; }), "");
  EXPECT_NE(messageOf({broadcast(0), broadcast(1)}, cpus(2)).find("root 1"), std::string::npos);
}

TEST(Signature, WhenOnlyTheSizesOfListsDiffer_SaysSo) {
  std::vector<Signature> signatures(3, allReduce());
  signatures[2].countsHash = 5;
  EXPECT_NE(messageOf(signatures, cpus(3)).find("differ in number or sizes"), std::string::npos);
}

TEST(Signature, WhenFactorsDiffer_IsOk) {
  std::vector<Signature> signatures(3, allReduce());
  for (Signature& s : signatures) s.op = ReduceOp::premulSum;
  signatures[2].scale.real = 0.5;
  EXPECT_TRUE(compare(signatures, cpus(3)).ok());
}

TEST(Signature, WhenTensorsLieElsewhere_MayDifferBetweenIslandsButNotInside) {
  const Layout layout = Layout::make({0, 0, 0, 0}, {0, 1, 0, 2});  // an island of ranks 0 and 2
  std::vector<Signature> signatures(4, allReduce());
  signatures[0].onDevice = signatures[2].onDevice = true;
  EXPECT_TRUE(compare(signatures, layout).ok());
  signatures[2].onDevice = false;
  EXPECT_EQ(messageOf(signatures, layout),
            "rank 2 called all_reduce #17 float32[100] SUM with tensors in host memory; rank 0 called "
            "all_reduce #17 "
            "float32[100] SUM with tensors in device memory. Ranks with like devices must pass tensors of "
            "the same kind");
}

TEST(Signature, WhenSplitSizesMatch_IsOkForDifferentCounts) {
  // rank 0 sends 1 to itself and 2 to rank 1; rank 1 sends 3 to rank 0 and 4 to itself.
  EXPECT_TRUE(compare(std::vector{allToAll({1, 2}, {1, 3}), allToAll({3, 4}, {2, 4})}, cpus(2)).ok());
}

TEST(Signature, WhenASplitSizeDoesNotMatch_NamesSourceDestinationAndBothCounts) {
  EXPECT_EQ(messageOf({allToAll({1, 2, 0}, {1, 3, 0}), allToAll({3, 4, 5}, {2, 4, 0}),
                       allToAll({0, 0, 0}, {0, 6, 0})},
                      cpus(3)),
            "all_to_all #17 float32 with split sizes: rank 1 sends 5 elements to rank 2, which expects 6 "
            "from rank 1. "
            "Compare the split sizes of these two ranks");
}

TEST(Signature, WhenOnlySomeRanksGiveSplitSizes_IsAMismatch) {
  Signature without = allToAll({}, {});
  EXPECT_NE(messageOf({allToAll({1, 2}, {1, 2}), without}, cpus(2)).find("with split sizes"),
            std::string::npos);
}

Signature randomSignature(std::mt19937_64& random, int worldSize) {
  Signature s;
  s.sequence = random();
  s.kind = static_cast<Kind>(random() % 9);
  do {
    s.dtype = static_cast<DType>(random() % kDTypeCount);
    s.op = static_cast<ReduceOp>(random() % kReduceOpCount);
  } while (!isDefined(s.op, s.dtype));
  s.onDevice = random() % 2 == 0;
  s.root = static_cast<int>(random() % static_cast<unsigned>(worldSize));
  s.count = random();
  s.countsHash = random();
  s.scale = {.real = static_cast<double>(random()) * -0.5,
             .imag = 3,
             .integer = static_cast<std::int64_t>(random())};
  if (s.kind == Kind::allToAll) {
    for (int i = 0; i < worldSize; ++i) {
      s.sends.push_back(static_cast<std::int64_t>(random() >> 32));
      s.receives.push_back(static_cast<std::int64_t>(random() >> 32));
    }
  }
  return s;
}

TEST(SignatureRecord, WhenSerialized_ParsesToTheSameValue) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2'000; ++i) {
    const int worldSize = 1 + static_cast<int>(random() % 9);
    const Signature signature = randomSignature(random, worldSize);
    const Result<Signature> parsed = parseSignature(serialize(signature), worldSize);
    ASSERT_TRUE(parsed.ok()) << describe(signature);
    ASSERT_EQ(parsed.value(), signature) << describe(signature);
  }
}

TEST(SignatureRecord, WhenCutOrExtended_IsRefused) {
  const std::vector<std::byte> bytes = serialize(allToAll({1, 2}, {3, 4}));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parseSignature(std::span(bytes).first(size), 2).status().code(), Code::invalidArgument) << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parseSignature(longer, 2).ok());
}

TEST(SignatureRecord, WhenAFieldIsOutOfRange_IsRefused) {
  const auto refused = [](auto change, int worldSize = 2) {
    Signature s = allToAll({1, 2}, {3, 4});
    change(s);
    return !parseSignature(serialize(s), worldSize).ok();
  };
  EXPECT_FALSE(refused([](Signature&) {}));
  EXPECT_TRUE(refused([](Signature&) {}, 3)) << "rows of another world size";
  EXPECT_TRUE(refused([](Signature&) {}, 0));
  EXPECT_TRUE(refused([](Signature& s) { s.root = 2; }));
  EXPECT_TRUE(refused([](Signature& s) { s.root = -1; }));
  EXPECT_TRUE(refused([](Signature& s) { s.sends[1] = -1; }));
  EXPECT_TRUE(refused([](Signature& s) { s.receives[0] = std::int64_t{1} << 62; })) << "sums would overflow";
  EXPECT_TRUE(refused([](Signature& s) { s.kind = static_cast<Kind>(9); }));
  EXPECT_TRUE(refused([](Signature& s) { s.dtype = static_cast<DType>(kDTypeCount); }));
  EXPECT_TRUE(refused([](Signature& s) { s.op = static_cast<ReduceOp>(kReduceOpCount); }));
  EXPECT_TRUE(refused([](Signature& s) {
    s.dtype = DType::c64;
    s.op = ReduceOp::max;
  })) << "an operation that the type lacks";
}

TEST(SignatureRecord, WhenBytesAreRandomOrMutated_GivesAValueOrARefusalAndNothingElse) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int values = 0;
  for (int i = 0; i < 200'000; ++i) {
    const int worldSize = 1 + static_cast<int>(random() % 4);
    std::vector<std::byte> bytes = serialize(randomSignature(random, worldSize));
    if (i % 4 == 0) {
      bytes.resize(random() % 200);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    }
    for (std::uint64_t change = random() % 3; change > 0 && !bytes.empty(); --change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 8));
    const Result<Signature> parsed = parseSignature(bytes, worldSize);
    if (parsed.ok()) {
      ++values;
      ASSERT_EQ(serialize(parsed.value()), bytes) << "a record has one form only; case " << i;
      ASSERT_FALSE(describe(parsed.value()).empty());
    } else {
      ASSERT_EQ(parsed.status().code(), Code::invalidArgument);
    }
  }
  EXPECT_GT(values, 20'000) << "mutations that parse are the interesting ones";
  EXPECT_LT(values, 180'000);
}

}  // namespace
}  // namespace kaitian::host
