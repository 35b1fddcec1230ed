//go:build !linux

package main

import (
	"context"

	"github.com/urfave/cli/v3"
)

// launchCommands say that processes are joined on Linux only.
func (a *app) launchCommands() []*cli.Command {
	return []*cli.Command{{
		Name: "launch", Usage: "train with a process for every rank (on Linux)", ArgsUsage: "FILE|DIR",
		Action: func(context.Context, *cli.Command) error { return usagef("launch works on Linux only; use ppc run") },
	}}
}
