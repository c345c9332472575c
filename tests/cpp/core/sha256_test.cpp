#include "kaitian/core/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kaitian/core/hash.h"
#include "kaitian/core/wire.h"

namespace kaitian::core {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15U];
  }
  return text;
}

std::string sha256Of(const std::string& message) { return hex(sha256(bytesOf(message))); }
std::string hmacOf(const std::string& key, const std::string& message) {
  return hex(hmacSha256(bytesOf(key), bytesOf(message)));
}

TEST(Sha256, WhenGivenTheVectorsOfFips180_GivesTheirDigests) {
  EXPECT_EQ(sha256Of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256Of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256Of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256Of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The digest of the digests of messages of 0 to 199 bytes, computed with Python's hashlib: every padding
// length.
TEST(Sha256, WhenMessagesHaveEveryLengthAroundABlock_PadsThemRight) {
  std::string digests;
  for (unsigned length = 0; length < 200; ++length) {
    std::string message;
    for (unsigned i = 0; i < length; ++i) message.push_back(static_cast<char>((i * 7 + length) % 256));
    digests += textOf(sha256(bytesOf(message)));
  }
  EXPECT_EQ(sha256Of(digests), "8c7c9ff69da76fc28823a1cb97268672663e628e1ea955868b16db46bab0545d");
}

TEST(HmacSha256, WhenGivenTheVectorsOfRfc4231_GivesTheirCodes) {
  EXPECT_EQ(hmacOf(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmacOf("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmacOf(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmacOf(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, WhenTheKeyIsExactlyOneBlock_DoesNotHashIt) {
  EXPECT_EQ(hmacOf(std::string(64, '\xaa'), "k"),
            "2f2e54fb9a560cff356cf6f237da80e9feee8c4e67e40499cd2a52e3f84eccdd");
}

TEST(EqualInConstantTime, WhenAnyByteOrTheLengthDiffers_IsFalse) {
  const std::string text = "0123456789";
  EXPECT_TRUE(equalInConstantTime(bytesOf(text), bytesOf("0123456789")));
  EXPECT_TRUE(equalInConstantTime({}, {}));
  EXPECT_FALSE(equalInConstantTime(bytesOf(text), bytesOf("012345678")));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'x';
    EXPECT_FALSE(equalInConstantTime(bytesOf(text), bytesOf(other))) << i;
  }
}

TEST(RandomBytes, WhenDrawnTwice_FillsEverythingAndDiffers) {
  std::vector<std::byte> first(4096), second(4096);
  ASSERT_TRUE(randomBytes(first).ok());
  ASSERT_TRUE(randomBytes(second).ok());
  EXPECT_NE(first, second);
  // A run of 32 zero bytes has probability 2^-244: part of the buffer would have been left as it was.
  EXPECT_EQ(hex(first).find(std::string(64, '0')), std::string::npos);
  EXPECT_TRUE(randomBytes({}).ok());
}

TEST(Hash64, WhenGivenTheVectorsOfFnv1a_GivesTheirValues) {
  EXPECT_EQ(Hash64().value(), 0xcbf29ce484222325U);
  EXPECT_EQ(Hash64().add(bytesOf("a")).value(), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(Hash64().add(bytesOf("foo")).add(bytesOf("bar")).value(), 0x85944171f73967e8U);
}

TEST(Hash64, WhenGivenANumber_HashesItsBytesFromTheLowest) {
  EXPECT_EQ(Hash64().add(0x0102030405060708U).value(), 0xc6d4496e17859d5U);
}

}  // namespace
}  // namespace kaitian::core
