// The kernel server: reads launches on standard input, runs them on the arena
// that descriptor 3 maps, and answers on standard output.
//
// A request is four words of 64 bits: magic, kernel, blocks, argument count; then three
// words per argument: kind (0 buffer, 1 scalar), offset or bits, length. An answer is
// a word 0, or a word 1, the block, and three texts (kernel, call, message), each a word of length and its bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "launch.h"

namespace {

using namespace AscendC::emulator;

constexpr uint64_t kMagic = 0x7070632d6c61756e;
constexpr uint64_t kMaxArguments = 64;

bool ReadAll(int fd, void* into, size_t bytes) {
    for (uint8_t* at = static_cast<uint8_t*>(into); bytes > 0;) {
        const ssize_t got = read(fd, at, bytes);
        if (got <= 0) return false;
        at += got;
        bytes -= size_t(got);
    }
    return true;
}

bool WriteAll(int fd, const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const ssize_t put = write(fd, text.data() + at, text.size() - at);
        if (put <= 0) return false;
        at += size_t(put);
    }
    return true;
}

void Append(std::string& out, uint64_t word) { out.append(reinterpret_cast<const char*>(&word), 8); }

std::string Answer(const std::string& kernel, const FaultReport& fault) {
    std::string out;
    Append(out, fault.set ? 1 : 0);
    if (!fault.set) return out;
    Append(out, uint64_t(fault.block));
    for (const std::string* text : {&kernel, &fault.call, &fault.message}) {
        Append(out, text->size());
        out += *text;
    }
    return out;
}

FaultReport Refusal(const char* message) { return FaultReport{true, 0, "launch", message}; }

FaultReport Execute(Server& server, uint8_t* arena, uint64_t arenaBytes, const uint64_t* header, const std::vector<uint64_t>& words) {
    if (header[1] >= kKernelCount) return Refusal("there is no kernel of this number");
    const Kernel& kernel = kKernels[header[1]];
    if (header[2] < 1 || header[2] > 65535) return Refusal("the number of blocks is not in 1..65535");
    if (header[3] != kernel.parameters) return Refusal("the number of arguments differs from the kernel's parameters");
    std::vector<uint64_t> arguments;
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < header[3]; i++) {
        const uint64_t kind = words[3 * i], value = words[3 * i + 1], length = words[3 * i + 2];
        if (kind == 1) {
            arguments.push_back(value);
            continue;
        }
        if (value > arenaBytes || length > arenaBytes - value) return Refusal("an argument is outside the arena");
        arguments.push_back(reinterpret_cast<uint64_t>(arena + value));
        extents.push_back(Extent{arena + value, length});
    }
    return server.Run(kernel, int64_t(header[2]), std::move(arguments), std::move(extents));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s ARENA_BYTES, started by its client\n", argv[0]);
        return 2;
    }
    const uint64_t arenaBytes = std::strtoull(argv[1], nullptr, 10);
    void* arena = mmap(nullptr, arenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
    if (arena == MAP_FAILED) {
        std::perror("the shared arena cannot be mapped");
        return 1;
    }
    const int answers = dup(1);
    dup2(2, 1);   // what a kernel prints must not mix with the answers
    Server server;
    uint64_t header[4];
    while (ReadAll(0, header, sizeof header)) {
        if (header[0] != kMagic || header[3] > kMaxArguments) {
            std::fprintf(stderr, "a malformed request\n");
            return 1;
        }
        std::vector<uint64_t> words(3 * header[3]);
        if (!ReadAll(0, words.data(), words.size() * 8)) return 1;
        const std::string kernel = header[1] < kKernelCount ? kKernels[header[1]].name : std::to_string(header[1]);
        if (!WriteAll(answers, Answer(kernel, Execute(server, static_cast<uint8_t*>(arena), arenaBytes, header, words)))) return 1;
    }
    return 0;
}
