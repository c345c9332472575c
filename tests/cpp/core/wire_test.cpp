#include "kaitian/core/wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace kaitian::core {
namespace {

TEST(Wire, WhenWrittenAndRead_GivesTheSameValues) {
  Writer writer;
  writer.number(std::uint8_t{200}).number(std::int16_t{-2}).number(std::uint32_t{0xdeadbeef});
  writer.number(std::numeric_limits<std::int64_t>::min()).number(-0.0).text("Zürich").text("");
  Reader reader(writer.bytes());
  EXPECT_EQ(reader.number<std::uint8_t>(), 200);
  EXPECT_EQ(reader.number<std::int16_t>(), -2);
  EXPECT_EQ(reader.number<std::uint32_t>(), 0xdeadbeefU);
  EXPECT_EQ(reader.number<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(std::signbit(reader.real()));
  EXPECT_EQ(reader.text(10), "Zürich");
  EXPECT_EQ(reader.text(10), "");
  EXPECT_TRUE(reader.done());
}

TEST(Wire, WhenNumbersAreWritten_TheLowestByteComesFirst) {
  const std::vector<std::byte> bytes = Writer().number(std::uint32_t{0x01020304}).bytes();
  EXPECT_EQ(textOf(bytes), std::string("\x04\x03\x02\x01"));
}

TEST(Wire, WhenAFieldIsCutOff_FailsAndStaysFailed) {
  const std::vector<std::byte> bytes = Writer().number(std::uint32_t{7}).number(std::uint8_t{1}).bytes();
  Reader reader(bytes);
  EXPECT_EQ(reader.number<std::uint64_t>(), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.number<std::uint8_t>(), 0U) << "what comes after a failure is not read either";
  EXPECT_FALSE(reader.done());
}

TEST(Wire, WhenATextClaimsMoreThanIsThere_Fails) {
  std::vector<std::byte> bytes = Writer().text("abc").bytes();
  bytes[0] = std::byte{4};
  Reader reader(bytes);
  EXPECT_EQ(reader.text(100), "");
  EXPECT_FALSE(reader.ok());
}

TEST(Wire, WhenATextIsLongerThanItsLimit_Fails) {
  const std::vector<std::byte> bytes = Writer().text("abc").bytes();
  Reader exact(bytes), shorter(bytes);
  EXPECT_EQ(exact.text(3), "abc");
  EXPECT_EQ(shorter.text(2), "");
  EXPECT_FALSE(shorter.ok());
}

TEST(Wire, WhenBytesAreLeft_IsOkButNotDone) {
  const std::vector<std::byte> bytes = Writer().number(std::uint16_t{7}).bytes();
  Reader reader(bytes);
  EXPECT_EQ(reader.number<std::uint8_t>(), 7U);
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.remaining(), 1U);
}

}  // namespace
}  // namespace kaitian::core
