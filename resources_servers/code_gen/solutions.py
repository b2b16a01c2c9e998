"""Programs for the problems of this folder: a right one, as a model would write it, and wrong ones."""

RIGHT = {
    "even_total": """
n = int(input())
values = list(map(int, input().split()))
print(sum(v for v in values if v % 2 == 0))
""",
    "balanced": """
pairs = {')': '(', ']': '[', '}': '{'}
stack = []
ok = True
for c in input().strip():
    if c in pairs:
        if not stack or stack.pop() != pairs[c]:
            ok = False
            break
    else:
        stack.append(c)
print('YES' if ok and not stack else 'NO')
""",
    "longest_climb": """
n = int(input())
a = list(map(int, input().split()))
best = run = 1
for x, y in zip(a, a[1:]):
    run = run + 1 if y > x else 1
    best = max(best, run)
print(best)
""",
    "fewest_coins": """
amount = int(input())
coins = list(map(int, input().split()))
best = [0] + [float('inf')] * amount
for total in range(1, amount + 1):
    for coin in coins:
        if coin <= total:
            best[total] = min(best[total], best[total - coin] + 1)
print(best[amount] if best[amount] < float('inf') else -1)
""",
    "way_out": """
from collections import deque
h, w = map(int, input().split())
g = [input().strip() for _ in range(h)]
dist = {(0, 0): 0}
q = deque([(0, 0)])
while q:
    y, x = q.popleft()
    for ny, nx in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
        if 0 <= ny < h and 0 <= nx < w and g[ny][nx] == '.' and (ny, nx) not in dist:
            dist[ny, nx] = dist[y, x] + 1
            q.append((ny, nx))
print(dist.get((h - 1, w - 1), -1))
""",
    "mean_height": """
print('%.2f' % (sum(map(int, input().split())) / 4))
""",
    "count_pairs": """
def count_pairs(nums, target):
    seen, found = Counter(), 0
    for n in nums:
        found += seen[target - n]
        seen[n] += 1
    return found
""",
    "merged": """
def merged(spans):
    out = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out
""",
    "rotated": """
def rotated(text, steps):
    cut = -steps % len(text)
    return text[cut:] + text[:cut]
""",
    "common_prefix": """
class Solution:
    def common_prefix(self, words: List[str]) -> str:
        low, high = min(words), max(words)
        n = 0
        while n < len(low) and low[n] == high[n]:
            n += 1
        return low[:n]
""",
    "unlike_letters": """
class Solution:
    def unlikeLetters(self, s: str) -> int:
        last, start, best = {}, 0, 0
        for i, c in enumerate(s):
            start = max(start, last.get(c, -1) + 1)
            last[c] = i
            best = max(best, i - start + 1)
        return best
""",
    "spiral": """
def spiral(matrix):
    h, w = len(matrix), len(matrix[0])
    y, x, dy, dx = 0, 0, 0, 1
    seen, out = set(), []
    for _ in range(h * w):
        out.append(matrix[y][x])
        seen.add((y, x))
        ny, nx = y + dy, x + dx
        if not (0 <= ny < h and 0 <= nx < w) or (ny, nx) in seen:
            dy, dx = dx, -dy
        y, x = y + dy, x + dx
    return out
""",
}

WRONG = {
    "even_total": [
        """
input()
print(sum(map(int, input().split())))
""",
        """
input()
print(sum(v for v in map(int, input().split()) if v > 0 and v % 2 == 0))
""",
    ],
    "balanced": [
        """
s = input()
print('YES' if all(s.count(a) == s.count(b) for a, b in ('()', '[]', '{}')) else 'NO')
""",
    ],
    "longest_climb": [
        """
n = int(input())
a = list(map(int, input().split()))
best = run = 1
for x, y in zip(a, a[1:]):
    run = run + 1 if y >= x else 1
    best = max(best, run)
print(best)
""",
    ],
    "fewest_coins": [
        """
amount = int(input())
coins = sorted(map(int, input().split()), reverse=True)
used = 0
for coin in coins:
    used += amount // coin
    amount %= coin
print(-1 if amount else used)
""",
    ],
    "way_out": [
        """
h, w = map(int, input().split())
print(h + w - 2)
""",
    ],
    "mean_height": [
        """
print(sum(map(int, input().split())) // 4)
""",
    ],
    "count_pairs": [
        """
def count_pairs(nums, target):
    return sum(target - n in nums for n in nums) // 2
""",
    ],
    "merged": [
        """
def merged(spans):
    out = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1][1] = end
        else:
            out.append([start, end])
    return out
""",
    ],
    "rotated": [
        """
def rotated(text, steps):
    return text[-steps:] + text[:-steps]
""",
    ],
    "common_prefix": [
        """
class Solution:
    def common_prefix(self, words):
        return ''.join(a for a, b in zip(words[0], words[-1]) if a == b)
""",
    ],
    "unlike_letters": [
        """
class Solution:
    def unlikeLetters(self, s: str) -> int:
        return len(set(s))
""",
    ],
    "spiral": [
        """
def spiral(matrix):
    return [n for i, row in enumerate(matrix) for n in (row[::-1] if i % 2 else row)]
""",
    ],
}
