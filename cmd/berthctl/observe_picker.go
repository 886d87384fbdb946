package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// observeAt shows what a running picker knows of the replica of that name.
func observeAt(ctx context.Context, from *reports, name string, show *display) error {
	show.now = time.Now
	look := func(ctx context.Context) (*v1alpha1.Observation, error) { return from.replica(ctx, name) }
	doc, err := look(ctx)
	if err == nil && !show.watch {
		err = show.once(doc)
	} else if err == nil {
		// The first is shown at once.
		first := make(chan struct{})
		close(first)
		doc, err = show.follow(ctx, first, look)
	}
	switch {
	case errors.Is(err, context.Canceled), err == nil && doc == nil:
		return errors.New("interrupted")
	case err != nil:
		return err
	case doc.ScrapeError != "":
		return unreadBecause(name, scrape{reason: doc.ScrapeError}, show.profiles, show.profiles.Profile(doc.Engine))
	case doc.Profile == "":
		return fmt.Errorf("%s: the picker has not read it yet", name)
	}
	return faults(name, "the pool says", doc)
}

// replica is what a picker knows of one of its replicas.
func (r *reports) replica(ctx context.Context, name string) (*v1alpha1.Observation, error) {
	const urls = "the URL of a replica itself begins with http:// or https://"
	var list struct {
		Items []v1alpha1.Observation `json:"items"`
	}
	if err := r.get(ctx, replicasPath, &list); err != nil {
		if usage := (usageError{}); errors.As(err, &usage) {
			return nil, usageError{fmt.Errorf("%w\n    %q is taken for the name of a replica; %s", err, name, urls)}
		}
		return nil, err
	}
	var names []string
	for i := range list.Items {
		if list.Items[i].Replica.Name == name {
			return &list.Items[i], nil
		}
		names = append(names, list.Items[i].Replica.Name)
	}
	slices.Sort(names)
	there := "it has none"
	if len(names) > 0 {
		there = "it has " + listed(names)
	}
	return nil, usageError{fmt.Errorf("NAME: %q: the picker at %s has no replica of this name; %s\n    %s", name, r.server, there, urls)}
}
