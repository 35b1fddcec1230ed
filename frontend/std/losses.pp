// losses.pp: losses and metrics of the standard library

// CrossEntropyLoss is the mean over the rows of the negative logarithm of the
// softmax at the label. The last axis of the logits is the classes; all others
// are rows.
cell CrossEntropyLoss {
    construct(logits, label) {
        if len(logits.shape) != 2 {
            logits = reshape(logits, [-1, logits.shape[-1]])
            label = reshape(label, [-1])
        }
        return mean(cross_entropy(logits, label))
    }
}

// MSELoss is the mean of the squared difference.
cell MSELoss {
    construct(output, label) {
        difference = output - label
        return mean(difference * difference)
    }
}

// Accuracy is the share of rows whose largest logit is at the label.
cell Accuracy {
    construct(logits, label) {
        hits = cast(equal(argmax(logits), label), f32)
        return ratio(sum(hits), logits.shape[0])
    }
}
