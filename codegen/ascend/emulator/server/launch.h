// One launch of a kernel: its blocks, their faults and what they share.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/core.h"

namespace AscendC::emulator {

// Kernel is a row of the generated table. entry calls the kernel with one word
// per parameter: an address, or the bits of a scalar.
struct Kernel {
    const char* name;
    uint32_t parameters;
    void (*entry)(const uint64_t* arguments);
};

extern const Kernel kKernels[];
extern const uint32_t kKernelCount;
extern const int64_t kVectorCores;
extern const int64_t kCubeCores;

struct Extent {
    uint8_t* base;
    uint64_t bytes;
};

struct FaultReport {
    bool set = false;
    int64_t block = 0;
    std::string call;
    std::string message;
};

// Span is a touched range of global memory, kept until all blocks meet.
struct Span {
    const uint8_t* begin;
    const uint8_t* end;
    int64_t block;
    bool write;
    bool atomic;
    const char* call;
};

struct Core;

struct Launch {
    const Kernel* kernel = nullptr;
    int64_t blocks = 0;
    std::vector<uint64_t> arguments;
    std::vector<Extent> extents;

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Core*> cores;
    int64_t arrived = 0;
    int64_t ended = 0;
    uint64_t epoch = 0;
    bool failed = false;
};

// Server keeps the cores between launches, so that a small kernel costs little.
class Server {
public:
    Server();
    ~Server();
    FaultReport Run(const Kernel& kernel, int64_t blocks, std::vector<uint64_t> arguments, std::vector<Extent> extents);

private:
    std::vector<std::unique_ptr<Core>> cores_;
};

// FindRace looks for two blocks that touched the same bytes, at least one
// writing and not both atomically.
FaultReport FindRace(std::vector<Span> spans);

}  // namespace AscendC::emulator
