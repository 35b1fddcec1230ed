// The program of a rank: what a stage's program.cpp describes and rank.cpp runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "hccl/hccl.h"

namespace ppc {

// Place is a range of an area's current slot.
struct Place {
    int area;
    int64_t offset;
    int64_t bytes;
};

// Area is a pool of equal slots; micro-batch i uses slot i mod slots.
struct Area {
    int slots;
    int64_t slotBytes;
};

// Context is what functions launch with.
struct Context {
    aclrtStream stream = nullptr;
    std::vector<uint8_t*> base;   // by area
    int32_t assign = 0;           // 1 in the first micro-batch, where accumulators are set
    std::string log;              // file of print operations

    uint8_t* At(int area, int64_t offset) const { return base[area] + offset; }
    void Launched(const char* kernel, uint32_t status) const;
    // Print shows a tensor of 4-byte elements.
    void Print(const char* label, const uint8_t* data, const std::vector<int64_t>& shape, bool integers) const;
};

using Function = void (*)(const Context& context, uint8_t* frame, uint8_t* const* arguments, uint8_t* const* results);

// Phase is a pass of a chunk: forward, input gradient or weight gradient.
struct Phase {
    Function function = nullptr;
    std::vector<Place> arguments;
    std::vector<Place> results;
};

struct Chunk {
    Phase phases[3];
};

struct Tensor {
    Place place;   // on this stage
    uint64_t count;
    HcclDataType type;
};

// Message is what this stage sends or receives; a stage that is neither end has no tensors.
struct Message {
    int from, to;   // stages
    int window;     // the send of micro-batch i ends before micro-batch i + window is computed
    int fromChunk;
    bool backward;
    std::vector<Tensor> tensors;
};

struct Input {
    std::string name;
    Place place;   // area -1 where the stage has no use for it
    bool loaded;   // before the first pass that reads it, not before the step
};

struct Output {
    std::string name;
    Place place;
};

struct Program {
    std::string name;
    int microBatches;
    std::vector<Chunk> chunks;   // empty phases on other stages
    std::vector<Message> messages;
    std::vector<Input> inputs;
    std::vector<Output> outputs;
};

struct Parameter {
    std::string name;
    Place value;
    std::vector<Place> states;
    std::vector<float> stateInit;
};

struct Stage {
    int index;
    int count;
    std::vector<Area> areas;
    int64_t scratchBytes;
    Place seed;   // area -1 without training
    float seedValue;
    std::vector<Parameter> parameters;
    std::vector<Program> programs;
    void (*update)(const Context& context);
};

// ThisStage is defined by the stage's program.cpp.
const Stage& ThisStage();

}  // namespace ppc
