// Types of what the scripts of the viewer share. Data of the server is `any`: its shape is tested where it is made.

type Component = (properties: any) => any;
type Page = { component: Component; title: (properties: any) => string };
type Binding = [keys: string, label: string, handler: ((event: KeyboardEvent) => void) | null];
type Route = { page: string; run: number; parts: string[]; query: Record<string, string> };

/** What the scripts offer each other; core/dom.js creates it and each script adds its part. */
interface GymView {
  html(strings: TemplateStringsArray, ...values: any[]): any;
  h(tag: any, properties: any, ...children: any[]): any;
  render(node: any, parent: Element | null): void;
  plain(text: string): string;
  Component: any;
  useState(initial: any): [any, (next: any) => void];
  useEffect(effect: () => void | undefined | (() => void), dependencies?: any[]): void;
  useLayoutEffect(effect: () => void | undefined | (() => void), dependencies?: any[]): void;
  useMemo<Value>(compute: () => Value, dependencies: any[]): Value;
  useRef(initial: any): { current: any };
  useErrorBoundary(report?: (error: Error) => void): [Error | undefined, () => void];
  useData(
    load: (signal: AbortSignal) => Promise<any>,
    dependencies: any[],
  ): { data: any; error: any; loading: boolean; reload: () => void };
  useWidth(reference: { current: any }): number;
  useKeys(title: string, bindings: Binding[]): void;
  keys: { groups: () => { title: string; bindings: Binding[] }[] };
  pages: Record<string, Page>;
  store: { get(key: string, fallback: any): any; set(key: string, value: any): void };
  router: {
    parse(hash: string): Route;
    current(): Route;
    address(run: number, page?: string, parts?: any[], query?: Record<string, any>): string;
    rollout(run: number, task: number, repeat: number, query?: Record<string, any>): string;
    compareAddress(runs: number[], query?: Record<string, any>): string;
    go(hash: string): void;
    replace(hash: string): void;
    listen(listener: () => void): () => void;
    selection(query: Record<string, string>): Record<string, string>;
  };
  ApiError: new (message: string, status: number, detail?: any) => Error & { status: number; detail: any };
  copyLink(): Promise<void>;
  dispatchCopy(text: string): void;
  showEvent(number: number): void;
  rewardRange(summary: any): [number, number];
  rowHref(run: number, row: any, query: any): string;
  verdictOf(data: any): any;
  verdictHeadline(verdict: any, facts: any): string;
  annotations?: { Panel: Component; Summary: Component; [name: string]: any };
  [name: string]: any;
}

declare const gymView: GymView;

interface Window {
  gymView: any;
  gymLoaded: (name: string, data: any) => void;
  htmPreact: any;
  markdownit: any;
  temml: any;
  hljs: any;
}
